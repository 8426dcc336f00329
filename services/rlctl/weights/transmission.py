"""One update of a cohort of replicas over its group, and who failed in it."""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import torch

from rlctl.core.errors import DeadlineError, InternalError, RlctlError, UnavailableError
from rlctl.rpc.portal import Portal
from rlctl.weights.bucket import Packer
from rlctl.weights.group import Group
from rlctl.weights.session import Session

Weights = Callable[[], Iterator[tuple[str, torch.Tensor]]]

#: Reasons that tell of a broken group, not of the member that reports them.
INNOCENT = ("TRANSFER_FAILED", "UNKNOWN_GROUP")

#: Seconds that members get to say what they saw of a broadcast that broke.
_GRACE_S = 10.0


class Transmission:
    """Sends one version; stops at the first member that fails."""

    def __init__(self, portal: Portal, sessions: Sequence[Session], group: Group, timeout_s: float) -> None:
        self.errors: dict[str, RlctlError] = {}
        """By member name; empty after a full success."""
        self.loaded: list[Session] = []
        """Who has it all in place."""
        self.num_bytes = 0
        self._portal = portal
        self._sessions = sessions
        self._group = group
        self._timeout_s = timeout_s

    def run(self, epoch: int, version: int, packer: Packer, weights: Weights) -> None:
        """Opens, streams all buckets, closes. A pass over the weights that is begun is finished in any case."""
        if not self._each(lambda session: session.open(epoch, self._group.name, version)):
            return
        source = iter(weights())
        flying: Any = None
        for bucket in packer.pack(source):
            # While this bucket was packed, the one before it was on its way.
            if flying is not None and not self._land(flying):
                break
            announcement, flying = bucket.announcement, None
            if not self._each(lambda session, told=announcement: session.announce(told)):  # type: ignore[misc]
                break
            flying = self._group.start_broadcast(bucket.data)
            self.num_bytes += announcement.num_bytes
        for _ in source:
            pass
        if self.errors or (flying is not None and not self._land(flying)):
            return
        calls = self._spawn(lambda session: session.close())
        self._settle(calls, 2 * self._timeout_s, stop_early=False)
        self.loaded = [one for one in self._sessions if one.member.name not in self.errors]

    def end(self) -> None:
        """Ends what still runs."""
        concurrent.futures.wait(self._spawn(lambda session: session.cancel()).values(), self._timeout_s)

    def _land(self, work: Any) -> bool:
        """Waits until a broadcast is through and everybody has checked and loaded its bucket."""
        calls = self._spawn(lambda session: session.loaded())
        wait_s = 2 * self._timeout_s
        while not work.is_completed() and not any(error_of(call) for call in calls.values()):
            time.sleep(0.0005)
        if work.is_completed():
            try:
                self._group.finish(work)
            except UnavailableError:
                wait_s = min(self._timeout_s, _GRACE_S)
                self._settle(calls, wait_s)
                if not self._blamed():
                    for session in self._sessions:
                        self.errors.setdefault(session.member.name, _broken(session))
                return False
        return self._settle(calls, wait_s)

    def _each(self, function: Callable[[Session], Awaitable[None]]) -> bool:
        return self._settle(self._spawn(function), 2 * self._timeout_s)

    def _spawn(self, function: Callable[[Session], Awaitable[None]]) -> dict[str, concurrent.futures.Future[None]]:
        return {one.member.name: self._portal.spawn(function, one) for one in self._sessions}

    def _settle(
        self, calls: dict[str, concurrent.futures.Future[None]], timeout_s: float, *, stop_early: bool = True
    ) -> bool:
        """Notes the errors of calls; early: as soon as somebody is to blame. True when there was none."""
        deadline = time.monotonic() + timeout_s
        waiting = dict(calls)
        while waiting and not (stop_early and self._blamed()):
            done, _ = concurrent.futures.wait(
                waiting.values(), max(0.0, deadline - time.monotonic()), concurrent.futures.FIRST_COMPLETED
            )
            for name in [name for name, call in waiting.items() if call in done]:
                error = error_of(waiting.pop(name))
                if error is not None:
                    self.errors[name] = error
            if not done:
                for session in self._sessions:
                    if session.member.name in waiting:
                        self.errors[session.member.name] = _silent(session, timeout_s)
                break
        for call in waiting.values():
            call.cancel()
        return not self.errors

    def _blamed(self) -> bool:
        return any(error.reason not in INNOCENT for error in self.errors.values())


def error_of(call: concurrent.futures.Future[Any]) -> RlctlError | None:
    """The error of a call that is done."""
    if not call.done():
        return None
    if call.cancelled():
        return UnavailableError("the call was cancelled")
    error = call.exception()
    if error is None or isinstance(error, RlctlError):
        return error
    return InternalError(f"{type(error).__name__}: {error}")


def _silent(session: Session, timeout_s: float) -> DeadlineError:
    return DeadlineError(f"generation at {session.member.address} gave no answer within {timeout_s:g} s")


def _broken(session: Session) -> UnavailableError:
    return UnavailableError(f"the broadcast to generation at {session.member.address} broke", reason="TRANSFER_FAILED")
