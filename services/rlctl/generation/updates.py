"""Moves a replica from version to version: who may, in which order, and what becomes of it when a step fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from rlctl.core.errors import (
    DataLossError,
    DeadlineError,
    FailedPreconditionError,
    FencedError,
    UnavailableError,
)
from rlctl.generation.metrics import UPDATES
from rlctl.generation.replica import Replica, State
from rlctl.weights.bucket import Announcement
from rlctl.weights.group import Invitation

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(eq=False)
class Update:
    """One update in progress."""

    version: int
    buckets: int = 0
    complete: bool = False


class Updates:
    """The weights of a replica. Errors are RlctlErrors; one that comes after `open` leaves the replica failed."""

    def __init__(self, replica: Replica, timeout_s: float) -> None:
        self._replica = replica
        self._engine = replica.engine
        self._timeout_s = timeout_s
        self._epoch = 0
        self._group: str | None = None
        self._update: Update | None = None
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._patience: asyncio.TimerHandle | None = None

    async def join_group(self, epoch: int, invitation: Invitation) -> None:
        """Joins a group for updates to come; what is served goes on."""
        self._fence(epoch)
        self._group = None
        self._timeout_s = invitation.timeout_s
        # It connects to the store, waits for the others, and connects to them.
        await self._do(self._engine.join_group(invitation), "join the group", times=4)
        self._group = invitation.group

    async def open(self, epoch: int, group: str, version: int) -> Update:
        """Begins an update to `version`: requests are held from now on. One that is open already is given up."""
        self._fence(epoch)
        if group != self._group:
            raise FailedPreconditionError(f"this replica did not join group {group!r}", reason="UNKNOWN_GROUP")
        if version < self._replica.version:
            raise FailedPreconditionError(
                f"version {version} is older than version {self._replica.version}, which is served; "
                "versions never go back",
                reason="OLD_VERSION",
            )
        if self._update is not None:
            await self.fail(self._update, UnavailableError("another update began"))
        update = self._update = Update(version)
        self._replica.held = True
        if self._replica.takes_requests:
            await self._replica.become(State.UPDATING)
        try:
            await self._do(self._engine.begin_update(), "hold its requests")
        except BaseException as error:
            await self.fail(update, error)
            raise
        self._wait_for_more(update)
        return update

    async def load_bucket(self, update: Update, announcement: Announcement) -> int:
        """Receives a bucket; returns how many were loaded so far."""
        self._go_on(update)
        if announcement.index != update.buckets:
            raise FailedPreconditionError(f"bucket {announcement.index} came after {update.buckets} buckets")
        await self._do(self._engine.load_bucket(announcement), f"load bucket {announcement.index}")
        update.buckets += 1
        self._wait_for_more(update)
        return update.buckets

    async def close(self, update: Update, num_buckets: int) -> None:
        """All buckets were sent; puts them in place."""
        self._go_on(update)
        if num_buckets != update.buckets:
            raise FailedPreconditionError(f"{num_buckets} buckets were sent and {update.buckets} came")
        await self._do(self._engine.finish_update(), "put the weights in place")
        update.complete = True
        self._wait_for_more(update)

    async def activate(
        self, epoch: int, version: int, canary: Sequence[int], logprobs: Sequence[float], tolerance: float
    ) -> float:
        """Serves the version just loaded if the canary's log-probs agree; an empty one always does.

        Returns their `relative_difference`. Raises DataLossError when that is too much.
        """
        self._fence(epoch)
        update = self._update
        if update is None or update.version != version or not update.complete:
            raise FailedPreconditionError(f"version {version} was not loaded whole", reason="NOT_LOADED")
        self._go_on(update)
        self._replica.doubt()
        try:
            if self._replica.takes_requests:
                await self._replica.become(State.VERIFYING)
            await self._do(self._engine.activate(version), "go on with the new weights")
            difference = 0.0
            if canary:
                scores = await self._do(self._engine.score(canary), "score the canary")
                difference = relative_difference(scores, logprobs)
            if difference > tolerance:
                raise DataLossError(
                    f"the canary's log-probs under version {version} differ by {difference:.3g} on average from the "
                    f"trainer's, as a share of each; allowed is {tolerance:.3g}. The version is not served.",
                    reason="CANARY_MISMATCH",
                )
            self._need(update)
        except BaseException as error:
            await self.fail(update, error)
            raise
        else:
            self._update = None
            UPDATES.labels("ok").inc()
            await self._replica.serve(version)
        finally:
            self._replica.decide()
        return difference

    async def fail(self, update: Update, error: BaseException) -> None:
        """An update broke off, unless it had ended before."""
        if self._update is not update:
            return
        self._update = None
        self._stop_waiting()
        UPDATES.labels("failed").inc()
        logger.error("an update failed, the replica stops serving: %s", str(error) or type(error).__name__)
        await asyncio.shield(self._keep(self._replica.lose()))

    def end(self) -> None:
        """Gives up what still waits for the engine."""
        self._stop_waiting()
        for task in self._tasks:
            task.cancel()

    def _fence(self, epoch: int) -> None:
        if self._replica.state is State.LOADING:
            raise UnavailableError("the model is not loaded yet")
        if epoch < self._epoch:
            raise FencedError(f"epoch {epoch} is over: a trainer of epoch {self._epoch} owns the run")
        self._epoch = epoch

    def _need(self, update: Update) -> None:
        if self._update is not update:
            raise UnavailableError("the update was given up", reason="NOT_OPEN")

    def _go_on(self, update: Update) -> None:
        """The publisher's next step has come."""
        self._need(update)
        self._stop_waiting()

    def _wait_for_more(self, update: Update) -> None:
        """The publisher's next step must come in time, or its requests would be held for ever."""
        self._need(update)
        self._stop_waiting()
        late = DeadlineError(f"the trainer did not go on with the update within {self._timeout_s:g} s")
        loop = asyncio.get_running_loop()
        self._patience = loop.call_later(self._timeout_s, lambda: self._keep(self.fail(update, late)))

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    async def _do(self, action: Awaitable[T], what: str, times: int = 2) -> T:
        """Runs an action of the engine to its end, whatever becomes of the caller, one after the other.

        The engine has time-outs of its own; when `times` the time-out is over it is stuck for good, and the process
        must end. Raises DeadlineError then.
        """

        async def run() -> T:
            async with self._lock:
                return await action

        limit_s = times * self._timeout_s
        task = self._keep(run())
        done, _ = await asyncio.wait({task}, timeout=limit_s)
        if not done:
            self._replica.stuck = f"it did not {what} within {limit_s:g} s"
            raise DeadlineError(f"the engine is stuck: {self._replica.stuck}")
        result: T = task.result()
        return result

    def _keep(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task that nobody needs to wait for."""
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # An error that nobody waits for any more has been told of already.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task


def relative_difference(scores: Sequence[float], logprobs: Sequence[float]) -> float:
    """Mean of |a - b| / max(1, |b|), for rounding grows with |b|; infinite when a number is missing or none."""
    if len(scores) != len(logprobs):
        return float("inf")
    terms = [abs(a - b) / max(1.0, abs(b)) for a, b in zip(scores, logprobs, strict=True)]
    difference = sum(terms) / max(1, len(terms))
    return difference if difference == difference else float("inf")
