from __future__ import annotations

import asyncio
import threading
import time

import pytest

from rlctl.core.errors import DeadlineError, NotFoundError, UnavailableError
from rlctl.rpc.portal import Portal


async def add(a: int, b: int) -> int:
    await asyncio.sleep(0)
    return a + b


def test_results_and_errors_come_back() -> None:
    async def fail() -> None:
        raise NotFoundError("no such thing")

    with Portal() as portal:
        assert portal.call(add, 1, 2) == 3
        with pytest.raises(NotFoundError, match="no such thing"):
            portal.call(fail)


def test_a_timeout_names_the_function_and_cancels_it() -> None:
    cancelled = threading.Event()

    async def forever() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with Portal() as portal:
        with pytest.raises(DeadlineError, match=r"forever was not done within 0\.05 s"):
            portal.call(forever, timeout_s=0.05)
        assert cancelled.wait(5)


def test_a_timeout_of_the_function_itself_is_not_taken_for_the_portals() -> None:
    async def own() -> None:
        raise TimeoutError("mine")

    with Portal() as portal, pytest.raises(TimeoutError, match="mine"):
        portal.call(own, timeout_s=5)


def test_spawned_work_runs_beside_the_caller() -> None:
    with Portal() as portal:
        begin = time.monotonic()
        futures = [portal.spawn(asyncio.sleep, 0.2, result=index) for index in range(10)]
        assert [future.result(5) for future in futures] == list(range(10))
        assert time.monotonic() - begin < 1.5


def test_close_cancels_what_runs_and_refuses_more() -> None:
    portal = Portal()
    future = portal.spawn(asyncio.sleep, 60)
    portal.call(asyncio.sleep, 0)
    portal.close()
    portal.close()
    assert future.cancelled()
    with pytest.raises(UnavailableError, match="closed"):
        portal.call(add, 1, 2)


def test_a_portal_does_not_wait_for_itself() -> None:
    with Portal() as portal:

        async def inner() -> int:
            return portal.call(add, 1, 2)

        with pytest.raises(RuntimeError, match="cannot wait for itself"):
            portal.call(inner)
