"""Real servers on free ports, pools that reach them, and certificates."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from rlctl.rpc.config import ChannelConfig, ServerConfig
from rlctl.rpc.pool import Pool
from rlctl.rpc.service import Hosted, RunningService, start
from support.certificates import Authority

Serve = Callable[..., Awaitable[RunningService]]
Connect = Callable[..., Pool]


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RLCTL_TOKEN", raising=False)


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Starts a hosted service as `reward`; it is stopped at the end of the test."""
    async with AsyncExitStack() as stack:

        async def begin(hosted: Hosted, **settings: object) -> RunningService:
            config = ServerConfig.model_validate({"metrics_listen": None, "drain_s": 1.0, **settings})
            service = await start("reward", config, hosted)
            stack.push_async_callback(service.stop)
            return service

        yield begin


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Makes a pool of the `reward` service from addresses; it is closed at the end of the test."""
    async with AsyncExitStack() as stack:

        def make(*addresses: str, **settings: object) -> Pool:
            config = ChannelConfig.model_validate({"addresses": list(addresses), "timeout_s": 20.0, **settings})
            pool = Pool("reward", config)
            stack.push_async_callback(pool.close)
            return pool

        yield make


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "authority")
