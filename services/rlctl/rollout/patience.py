"""Which errors of a service are waited out, which are an answer, and which end the worker."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from rlctl.core.errors import (
    AccessDeniedError,
    AuthenticationError,
    DeadlineError,
    FailedPreconditionError,
    InternalError,
    ResourceExhaustedError,
    RlctlError,
    UnavailableError,
)
from rlctl.rollout.metrics import RETRIES

log = logging.getLogger("rlctl.rollout")

T = TypeVar("T")

#: A service's own defect may be gone the next time, on another replica; not for ever.
_DEFECT_TRIES = 3
_SHORTEST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_SAY_EVERY_S = 10.0


class MisconfiguredError(RlctlError):
    """No prompt can be worked on: the worker itself may not call, or calls the wrong place."""

    reason = "MISCONFIGURED"


async def insist(service: str, call: Callable[[], Awaitable[T]]) -> T:
    """Calls until there is an answer: an unreachable, loading, slow or full service is waited for, and the log says so.

    Raises the RlctlError of a call that was refused for what it asks, and MisconfiguredError.
    """
    begin = time.monotonic()
    said = -_SAY_EVERY_S
    pause = _SHORTEST_PAUSE_S
    defects = 0
    while True:
        try:
            return await call()
        except RlctlError as error:
            if isinstance(error, AuthenticationError | AccessDeniedError) or error.reason == "UNIMPLEMENTED":
                raise MisconfiguredError(f"{service}: {error.message}") from error
            defects += isinstance(error, InternalError)
            if not passes(error) and not (isinstance(error, InternalError) and defects < _DEFECT_TRIES):
                raise
            reason = error.message
        RETRIES.labels(service).inc()
        now = time.monotonic()
        if now - said >= _SAY_EVERY_S:
            said = now
            log.warning("waiting for %s since %.0f s: %s", service, now - begin, reason)
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)


def passes(error: RlctlError) -> bool:
    """Whether an error goes away by waiting."""
    if isinstance(error, ResourceExhaustedError):
        return error.reason != "MESSAGE_TOO_LARGE"
    return isinstance(error, UnavailableError | DeadlineError | FailedPreconditionError)
