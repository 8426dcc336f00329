"""A replica: an engine, the version it serves, and whether it may serve.

    loading ─► serving ◄─────────────────── activate (canary agrees)
       │          │ open                        ▲
       │          ▼                             │
       └─► behind ─► updating ─ buckets, close ─┴─► (any failure) failed ─ open ─► updating

While updating, requests are held and come to no harm. Tokens that come after `activate` begins are handed out only
once the canary agreed. A failure ends all requests (their callers go to another replica) and is mended by a whole
update alone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import aclosing
from enum import Enum
from typing import Any, TypeVar

from rlctl.core.errors import (
    DataLossError,
    DeadlineError,
    FailedPreconditionError,
    FencedError,
    RlctlError,
    UnavailableError,
)
from rlctl.generation.engine import Completion, Engine, Sampling
from rlctl.generation.metrics import PROMPTS, RUNNING, TOKENS, UPDATES, VERSION
from rlctl.rpc.health import Health
from rlctl.weights.bucket import Announcement
from rlctl.weights.group import Invitation

logger = logging.getLogger(__name__)

T = TypeVar("T")


class State(Enum):
    """Where a replica stands; see the module."""

    LOADING = "is loading"
    BEHIND = "waits for the trainer's weights"
    SERVING = "serves"
    UPDATING = "receives new weights"
    VERIFYING = "checks new weights"
    FAILED = "lost its weights in a sync that failed and waits for the next one"


_TAKES_REQUESTS = (State.SERVING, State.UPDATING, State.VERIFYING)


class Replica:
    """What both servicers speak to. Errors are RlctlErrors."""

    def __init__(self, engine: Engine, health: Health, update_timeout_s: float) -> None:
        self.engine = engine
        self.state = State.LOADING
        self.version = 0
        self.prompts_generated = 0
        self.tokens_generated = 0
        self.last_sign_of_life = time.monotonic()
        self._health = health
        self._timeout_s = update_timeout_s
        self._epoch = 0
        self._group: str | None = None
        self._open: int | None = None
        """Version of the update in progress."""
        self._buckets = 0
        self._complete = False
        self._failures = 0
        self._verdict = asyncio.Event()
        self._verdict.set()
        self._engine_lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._watch: asyncio.TimerHandle | None = None
        self.stuck: str | None = None
        """What the engine was told to do and never finished."""
        RUNNING.set_function(engine.running)

    @property
    def generates(self) -> bool:
        """Whether the engine is free to generate; an update, and one that failed, hold it."""
        return self._open is None and self.state in (State.SERVING, State.BEHIND)

    async def ready(self, catch_up: bool) -> None:
        """Called once the engine is loaded and has generated a token."""
        await self._become(State.BEHIND if catch_up else State.SERVING)

    async def generate(
        self, request_id: str, prompt_ids: Sequence[int], sampling: Sampling, logprobs: bool
    ) -> list[Completion]:
        """`sampling.n` responses. Raises UnavailableError when the replica does not serve or stops to."""
        failures = self._admit()
        completions = await self.engine.generate(request_id, prompt_ids, sampling, logprobs)
        await self._settled(failures)
        for completion in completions:
            self._count(completion)
        self.prompts_generated += 1
        PROMPTS.inc()
        return completions

    async def stream(
        self, request_id: str, prompt_ids: Sequence[int], sampling: Sampling, logprobs: bool
    ) -> AsyncGenerator[Completion, None]:
        """One response, piece by piece."""
        failures = self._admit()
        async with aclosing(self.engine.stream(request_id, prompt_ids, sampling, logprobs)) as pieces:
            async for piece in pieces:
                await self._settled(failures)
                self._count(piece)
                yield piece
        self.prompts_generated += 1
        PROMPTS.inc()

    async def join_group(self, epoch: int, group: str, invitation: Invitation) -> None:
        """Joins a group for syncs to come; what is served goes on."""
        self._fence(epoch)
        if self.state is State.LOADING:
            raise UnavailableError("the model is not loaded yet")
        self._group = None
        self._timeout_s = invitation.timeout_s
        # It connects to the store, waits for the others, and connects to them.
        await self._do(self.engine.join_group(invitation), "join the group", patience=4)
        self._group = group

    async def open(self, epoch: int, group: str, version: int) -> None:
        """Begins an update to `version`: requests are held from now on."""
        self._fence(epoch)
        if self.state is State.LOADING:
            raise UnavailableError("the model is not loaded yet")
        if group != self._group:
            raise FailedPreconditionError(f"this replica did not join group {group!r}", reason="UNKNOWN_GROUP")
        if version < self.version:
            raise FailedPreconditionError(
                f"version {version} is older than version {self.version}, which is served; versions never go back",
                reason="OLD_VERSION",
            )
        if self._open is not None:
            # Its publisher is gone, or this would be fenced.
            await self.fail(UnavailableError("another update began"))
        self._open, self._buckets, self._complete = version, 0, False
        await self._become(State.UPDATING if self.state in _TAKES_REQUESTS else self.state)
        await self._do(self.engine.begin_update(), "hold its requests")
        self._expect_within(self._timeout_s)

    async def load_bucket(self, announcement: Announcement) -> int:
        """Receives a bucket; returns how many were loaded so far."""
        self._need_open()
        if announcement.index != self._buckets:
            raise FailedPreconditionError(f"bucket {announcement.index} came after {self._buckets} buckets")
        await self._do(self.engine.load_bucket(announcement), f"load bucket {announcement.index}")
        self._buckets += 1
        self._expect_within(self._timeout_s)
        return self._buckets

    async def close_update(self, num_buckets: int) -> None:
        """All buckets were sent; puts them in place."""
        self._need_open()
        if num_buckets != self._buckets:
            raise FailedPreconditionError(f"{num_buckets} buckets were sent and {self._buckets} came")
        await self._do(self.engine.finish_update(), "put the weights in place")
        self._complete = True
        self._expect_within(self._timeout_s)

    async def activate(
        self, epoch: int, version: int, canary: Sequence[int], logprobs: Sequence[float], tolerance: float
    ) -> float:
        """Serves the version just loaded if the canary's log-probs agree (an empty one always does); returns by how
        much they differ on average. Raises DataLossError when they do not.
        """
        self._fence(epoch)
        if self._open is None and version == self.version and self.state is State.SERVING:
            return 0.0
        if self._open != version or not self._complete:
            raise FailedPreconditionError(f"version {version} was not loaded whole", reason="NOT_LOADED")
        self._expect_within(None)
        served = self.state in _TAKES_REQUESTS
        self._verdict.clear()
        try:
            if served:
                self.state = State.VERIFYING
            await self._do(self.engine.activate(version), "go on with the new weights")
            difference = 0.0
            if canary:
                scores = await self._do(self.engine.score(canary), "score the canary")
                difference = mean_difference(scores, logprobs)
            if not difference <= tolerance:
                raise DataLossError(
                    f"the canary's log-probs under version {version} differ by {difference:.3g} on average from the "
                    f"trainer's; allowed is {tolerance:.3g}. The version is not served.",
                    reason="CANARY_MISMATCH",
                )
        except BaseException as error:
            await self.fail(error)
            raise
        finally:
            self._verdict.set()
        self.version, self._open = version, None
        self.last_sign_of_life = time.monotonic()
        VERSION.set(version)
        UPDATES.labels("ok").inc()
        await self._become(State.SERVING)
        return difference

    async def fail(self, error: BaseException) -> None:
        """An update broke off: what the engine holds now is no version. Ends all requests."""
        self._expect_within(None)
        self._open, self._complete = None, False
        self._failures += 1
        UPDATES.labels("failed").inc()
        logger.error("the update failed, the replica stops serving: %s", error or type(error).__name__)
        await self._become(State.FAILED)
        await asyncio.shield(self._keep(self.engine.abort_all()))

    async def close(self) -> None:
        """Waits for what runs in the engine, then ends it."""
        self._expect_within(None)
        for task in self._tasks:
            task.cancel()
        await self.engine.close()

    def _admit(self) -> int:
        if self.state not in _TAKES_REQUESTS:
            raise UnavailableError(f"this replica {self.state.value}", reason="NOT_SERVING")
        return self._failures

    async def _settled(self, failures: int) -> None:
        """Returns once what was generated may be handed out."""
        await self._verdict.wait()
        if self._failures != failures:
            raise UnavailableError(
                "the weights changed in a sync that failed; ask another replica, or wait", reason="NOT_SERVING"
            )

    def _count(self, completion: Completion) -> None:
        self.last_sign_of_life = time.monotonic()
        self.tokens_generated += len(completion.token_ids)
        TOKENS.inc(len(completion.token_ids))

    def _fence(self, epoch: int) -> None:
        if epoch < self._epoch:
            raise FencedError(f"epoch {epoch} is over: a trainer of epoch {self._epoch} owns the run")
        self._epoch = epoch

    def _need_open(self) -> None:
        if self._open is None or self._complete:
            raise FailedPreconditionError("no update is open", reason="NOT_OPEN")

    def _expect_within(self, timeout_s: float | None) -> None:
        """The publisher's next step must come in time, or its requests would be held for ever."""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if timeout_s is not None:
            self._watch = asyncio.get_running_loop().call_later(timeout_s, self._publisher_is_late, timeout_s)

    def _publisher_is_late(self, timeout_s: float) -> None:
        self._keep(self.fail(DeadlineError(f"the trainer did not go on with the update within {timeout_s:g} s")))

    async def _become(self, state: State) -> None:
        self.state = state
        serving = state in _TAKES_REQUESTS
        workers = str(self.engine.workers)
        if self._health.serving != serving or self._health.extra.get("policy_version") != str(self.version):
            await self._health.set_serving(serving, policy_version=str(self.version), workers=workers)

    async def _do(self, action: Awaitable[T], what: str, patience: int = 2) -> T:
        """Runs an action of the engine to its end, whatever becomes of the caller, one after the other.

        The engine has time-outs of its own; when `patience` times the time-out is over, it is stuck for good, and
        the process must end. Raises DeadlineError then.
        """

        async def run() -> T:
            async with self._engine_lock:
                return await action

        limit_s = patience * self._timeout_s
        task = self._keep(run())
        done, _ = await asyncio.wait({task}, timeout=limit_s)
        if not done:
            self.stuck = f"it did not {what} within {limit_s:g} s"
            raise DeadlineError(f"the engine is stuck: {self.stuck}")
        result: T = task.result()
        return result

    def _keep(self, coroutine: Any) -> asyncio.Task[Any]:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) and not isinstance(error, RlctlError):
            logger.error("the engine failed", exc_info=error)


def mean_difference(scores: Sequence[float], logprobs: Sequence[float]) -> float:
    """Mean absolute difference; infinite when a number is missing or is none."""
    if len(scores) != len(logprobs):
        return float("inf")
    difference = sum(abs(a - b) for a, b in zip(scores, logprobs, strict=True)) / max(1, len(scores))
    return difference if difference == difference else float("inf")
