"""What every test process needs before the first import of a heavy library."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator

import pytest

# Ray reads its way of authentication once a process, at whatever test first touches it.
os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
async def one_event_loop(anyio_backend: str) -> AsyncIterator[None]:
    """gRPC wakes the loops of all that have ever asked it, and a loop that is closed makes another one's test fail."""
    yield  # noqa: PT022, the loop lives as long as the fixture
