"""Finds out that an engine is dead, also when nobody asks it anything."""

from __future__ import annotations

import asyncio
import time

from rlctl.core.errors import InternalError, RlctlError
from rlctl.generation.engine import Engine, Sampling
from rlctl.generation.replica import Replica

#: Seconds between two looks.
_LOOK_S = 0.5

_TOKEN = Sampling(max_tokens=1, temperature=0.0)


async def prove(engine: Engine, timeout_s: float) -> None:
    """Generates a token. Raises InternalError when none comes."""
    try:
        await asyncio.wait_for(_generate(engine), timeout_s)
    except TimeoutError:
        raise _late(timeout_s) from None


async def watch(replica: Replica, interval_s: float, timeout_s: float) -> None:
    """Raises InternalError once the engine is dead, is stuck, or stopped to generate.

    A replica that finished nothing for `interval_s` is asked for a token, which must come within `timeout_s`; while
    an update holds requests the clock stands still.
    """
    probe: asyncio.Task[None] | None = None
    waited_s = 0.0
    try:
        while True:
            await asyncio.sleep(_LOOK_S)
            fault = replica.engine.fault() or replica.stuck
            if fault is not None:
                raise _dead(fault)
            if probe is None:
                if not replica.held and time.monotonic() - replica.last_sign_of_life > interval_s:
                    probe, waited_s = asyncio.create_task(_generate(replica.engine)), 0.0
            elif probe.done():
                probe.result()
                probe, replica.last_sign_of_life = None, time.monotonic()
            else:
                waited_s += 0.0 if replica.held else _LOOK_S
                if waited_s > timeout_s:
                    raise _late(timeout_s)
    finally:
        if probe is not None:
            probe.cancel()


async def _generate(engine: Engine) -> None:
    try:
        await engine.generate("health", [0], _TOKEN, False)
    except RlctlError as error:
        raise _dead(error.message) from error


def _late(timeout_s: float) -> InternalError:
    return _dead(f"it generated no token within {timeout_s:g} s")


def _dead(why: str) -> InternalError:
    return InternalError(f"the generation engine is dead: {why}", reason="ENGINE_DEAD")
