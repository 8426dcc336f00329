"""A replica: an engine, the version it serves, and whether it may serve. `Updates` moves it from version to version.

    loading ─► serving ◄──────────────────── activate (canary agrees)
       │          │ open                          ▲
       │          ▼                               │
       └─► behind ─► updating ─ buckets, close ─► verifying ─► (any failure) failed ─ open ─► ...

While updating, requests are held and come to no harm. Tokens that come after `activate` begins are handed out only
once the canary agreed. A failure ends all requests (their callers go to another replica) and is mended by a whole
update alone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from enum import Enum

from rlctl.core.errors import UnavailableError
from rlctl.generation.engine import Completion, Engine, Sampling
from rlctl.generation.metrics import PROMPTS, RUNNING, TOKENS, VERSION
from rlctl.rpc.health import Health

logger = logging.getLogger(__name__)


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
    """Generates while its state allows it, and counts."""

    def __init__(self, engine: Engine, health: Health) -> None:
        self.engine = engine
        self.state = State.LOADING
        self.version = 0
        self.prompts_generated = 0
        self.tokens_generated = 0
        self.last_sign_of_life = time.monotonic()
        self.held = False
        """An update, or one that failed, keeps the engine from generating."""
        self.stuck: str | None = None
        """What the engine was told to do and never finished."""
        self._health = health
        self._failures = 0
        self._verdict = asyncio.Event()
        self._verdict.set()
        RUNNING.set_function(engine.running)

    @property
    def takes_requests(self) -> bool:
        """Also while an update holds them."""
        return self.state in _TAKES_REQUESTS

    async def generate(
        self, request_id: str, prompt_ids: Sequence[int], sampling: Sampling, logprobs: bool
    ) -> list[Completion]:
        """`sampling.n` responses. Raises UnavailableError when the replica does not serve or stops to."""
        failures = self._admit()
        logger.debug("generating for request %s", request_id)
        completions = await self.engine.generate(request_id, prompt_ids, sampling, logprobs)
        await self._settled(failures)
        for completion in completions:
            self._count(completion)
        self._answered()
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
        self._answered()

    async def become(self, state: State) -> None:
        """Changes the state, and tells when that changes whether it serves."""
        self.state = state
        workers = str(self.engine.workers)
        if not self._health.decided or self._health.serving != self.takes_requests:
            await self._health.set_serving(self.takes_requests, policy_version=str(self.version), workers=workers)

    async def serve(self, version: int) -> None:
        """Serves a version from now on."""
        self.version = version
        self.held = False
        self.last_sign_of_life = time.monotonic()
        VERSION.set(version)
        self.state = State.SERVING
        await self._health.set_serving(True, policy_version=str(version), workers=str(self.engine.workers))

    async def lose(self) -> None:
        """What the engine holds is no version: ends every request, and serves no more."""
        self.held = True
        self._failures += 1
        await self.become(State.FAILED)
        await self.engine.abort_all()

    def doubt(self) -> None:
        """From now on nothing is handed out before `decide`."""
        self._verdict.clear()

    def decide(self) -> None:
        """The end of doubt: for the good, or after `lose`."""
        self._verdict.set()

    def _admit(self) -> int:
        if not self.takes_requests:
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

    def _answered(self) -> None:
        self.prompts_generated += 1
        PROMPTS.inc()
