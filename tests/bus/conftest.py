"""A real nats-server for each test, on a free port."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from rlctl.bus.bus import Bus
from rlctl.bus.config import BusConfig
from rlctl.bus.server import NatsServer
from support.groups import RUN, Connect


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path / "nats")
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def connect(server: NatsServer) -> AsyncIterator[Connect]:
    """Connects another bus of run `my_run.1` to the test's server, with streams."""
    buses: list[Bus] = []

    async def make(**settings: object) -> Bus:
        config = BusConfig(url=server.url, run=RUN).model_copy(update=settings)
        bus = await Bus.connect(config, "test")
        buses.append(bus)
        await bus.create_streams()
        return bus

    yield make
    for bus in buses:
        await bus.close()
