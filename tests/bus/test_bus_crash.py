"""The broker dies (SIGKILL) and comes back on the same folder; a connection ends for good."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from rlctl.bus.bus import Bus
from rlctl.bus.config import BusConfig
from rlctl.bus.server import NatsServer
from rlctl.core.errors import FencedError, UnavailableError
from support.groups import RUN, Connect, collect, rollout, task

pytestmark = pytest.mark.anyio


def kill(server: NatsServer) -> None:
    assert server.process is not None
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait()


def freeze(server: NatsServer) -> None:
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)
    while "T (stopped)" not in Path(f"/proc/{server.pid}/status").read_text():
        time.sleep(0.01)


async def restart(server: NatsServer, after_s: float = 0.0) -> None:
    await asyncio.sleep(after_s)
    await asyncio.to_thread(server.start)


async def test_killed_in_mid_publish_nothing_is_lost_and_nothing_doubled(server: NatsServer, connect: Connect) -> None:
    bus = await connect()
    stored = 0

    async def publish(first: int) -> None:
        nonlocal stored
        for prompt in range(first, first + 50):
            await bus.publish_rollout(rollout(prompt))
            stored += 1

    publishing = asyncio.gather(*(publish(first) for first in (0, 50, 100)))
    for until in (20, 70, 120):
        while stored < until:
            await asyncio.sleep(0.002)
        kill(server)
        await restart(server)
    await publishing
    consumer = await bus.rollout_consumer(epoch=1, max_ack_pending=200)
    got: Counter[int] = Counter()
    while batch := await consumer.fetch(200, 1.0):
        got.update(delivery.message.task.id.prompt for delivery in batch)
    assert got == Counter(range(150))


async def test_what_is_held_while_the_broker_dies_is_held_afterwards(server: NatsServer, connect: Connect) -> None:
    bus = await connect(ack_wait_s=2.0)
    for prompt in range(8):
        await bus.publish_prompt(task(prompt))
    consumer = await bus.prompt_consumer()
    held = await collect(consumer, 5)
    assert len(held) == 5
    kill(server)
    assert await consumer.fetch(8, 0.3) == [], "a fetch does not outlast its time-out because the broker is away"
    await restart(server)
    others = await collect(consumer, 3, 10.0)
    assert sorted(delivery.message.id.prompt for delivery in held + others) == list(range(8))
    assert await consumer.fetch(8, 4.0) == [], "and nothing that is held comes again"
    await asyncio.gather(*(delivery.ack_sync() for delivery in held + others))
    assert not any([await bus.prompt_exists(delivery.message.id) for delivery in held + others])


async def test_an_ack_that_the_broker_dies_on_is_made_good(server: NatsServer, connect: Connect) -> None:
    bus = await connect()
    for prompt in range(20):
        await bus.publish_rollout(rollout(prompt))
    consumer = await bus.rollout_consumer(epoch=1, max_ack_pending=32)
    held = await collect(consumer, 20)
    assert len(held) == 20
    acking = asyncio.gather(*(delivery.ack_sync() for delivery in held))
    await asyncio.sleep(0.01)
    kill(server)
    await restart(server, after_s=0.2)
    await acking
    assert not any([await bus.rollout_exists(delivery.message.task.id) for delivery in held])
    assert await consumer.fetch(20, 0.5) == []


async def test_acks_reach_a_broker_that_forgot_what_it_had_delivered(server: NatsServer, connect: Connect) -> None:
    bus = await connect()
    for prompt in range(4):
        await bus.publish_rollout(rollout(prompt))
    consumer = await bus.rollout_consumer(epoch=1, max_ack_pending=32)
    held = await collect(consumer, 4)
    assert len(held) == 4
    kill(server)
    [state] = server.store_dir.glob("data/**/obs/trainer-1/o.dat")
    state.unlink()
    await restart(server)
    async with asyncio.timeout(10.0):
        await asyncio.gather(*(delivery.ack_sync() for delivery in held))
    assert not any([await bus.rollout_exists(delivery.message.task.id) for delivery in held])
    await bus.publish_rollout(rollout(9))
    [delivery] = await consumer.fetch(8, 2.0)
    assert delivery.message.task.id.prompt == 9


async def test_a_fenced_trainer_cannot_acknowledge(connect: Connect) -> None:
    bus = await connect()
    await bus.publish_rollout(rollout(1))
    old = await (await connect()).rollout_consumer(epoch=1, max_ack_pending=8)
    [delivery] = await old.fetch(1, 2.0)
    new = await bus.rollout_consumer(epoch=2, max_ack_pending=8)
    with pytest.raises(FencedError, match="newer trainer"):
        await delivery.ack_sync()
    assert [one.message.task.id.prompt for one in await new.fetch(1, 2.0)] == [1]


async def test_a_fetch_in_waiting_survives_a_restart(server: NatsServer, connect: Connect) -> None:
    bus = await connect()
    consumer = await bus.prompt_consumer()
    waiting = asyncio.create_task(consumer.fetch(4, 30.0))
    await asyncio.sleep(0.2)
    kill(server)
    await restart(server)
    await bus.publish_prompt(task(1))
    begin = time.monotonic()
    assert len(await waiting) == 1
    assert time.monotonic() - begin < 2.0


async def test_a_publish_waits_for_the_broker_and_says_so(
    server: NatsServer, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    bus = await connect()
    kill(server)
    with caplog.at_level(logging.INFO, logger="rlctl.bus"):
        publishing = asyncio.create_task(bus.publish_prompt(task(1)))
        await restart(server, after_s=1.0)
        assert await publishing
    assert f"lost the connection to NATS at {server.url}" in caplog.text
    assert f"connected to NATS at {server.url} again" in caplog.text


async def test_an_outage_beyond_its_limit_is_an_error_that_names_the_address(
    server: NatsServer, connect: Connect
) -> None:
    bus = await connect(outage_timeout_s=1.0)
    kill(server)
    begin = time.monotonic()
    with pytest.raises(UnavailableError, match=f"NATS at {server.url} did not store group .* within 1 s: see whether"):
        await bus.publish_prompt(task(1))
    assert time.monotonic() - begin < 3.0


async def test_an_unreachable_server_is_named_with_the_mend() -> None:
    begin = time.monotonic()
    with pytest.raises(
        UnavailableError, match=r"no NATS server answered at nats://127.0.0.1:9 within 0.5 s .* correct the address"
    ):
        await Bus.connect(BusConfig(url="nats://user:secret@127.0.0.1:9", connect_timeout_s=0.5), "test")
    assert time.monotonic() - begin < 3.0


async def test_a_frozen_server_is_noticed(server: NatsServer, connect: Connect) -> None:
    bus = await connect(outage_timeout_s=7.0)
    freeze(server)
    assert server.pid is not None
    try:
        with pytest.raises(UnavailableError, match="within 7 s"):
            await bus.publish_prompt(task(1))
    finally:
        os.kill(server.pid, signal.SIGCONT)
    await bus.publish_prompt(task(2))


async def test_a_publish_can_be_cancelled_while_the_server_does_not_read(server: NatsServer, connect: Connect) -> None:
    bus = await connect()
    freeze(server)
    assert server.pid is not None
    try:
        large = rollout(1)
        large.task.prompt = "x" * (7 * 1024 * 1024)
        publishing = asyncio.create_task(bus.publish_rollout(large))
        await asyncio.sleep(0.3)
        publishing.cancel()
        done, _ = await asyncio.wait({publishing}, timeout=2.0)
        assert done
        assert publishing.cancelled()
    finally:
        os.kill(server.pid, signal.SIGCONT)


async def test_a_connection_closed_for_good_is_loud_and_final(
    server: NatsServer, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    bus = await connect()
    consumer = await bus.prompt_consumer()
    fetching = asyncio.create_task(consumer.fetch(1, 30.0))
    publishing = asyncio.create_task(bus.closed.wait())
    await asyncio.sleep(0.1)
    with caplog.at_level(logging.CRITICAL, logger="rlctl.bus"):
        # The server ends connections that break its protocol; this one is a message over its hard limit.
        await bus.connection._nats._send_command(b"PUB x 999999999\r\n")
        await bus.connection._nats._flush_pending()
        await asyncio.wait_for(publishing, 5.0)
    assert "closed for good" in caplog.text
    with pytest.raises(UnavailableError, match="is closed"):
        await fetching
    with pytest.raises(UnavailableError, match="restart this process"):
        await bus.publish_prompt(task(1))


async def test_closing_on_purpose_is_quiet(connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    bus = await connect()
    with caplog.at_level(logging.WARNING, logger="rlctl.bus"):
        await bus.close()
    assert bus.closed.is_set()
    assert caplog.text == ""


async def test_streams_survive_an_orderly_restart_of_everything(tmp_path: Path) -> None:
    for round in range(2):
        server = NatsServer(tmp_path / "nats")
        server.start()
        try:
            bus = await Bus.connect(BusConfig(url=server.url, run=RUN), "test")
            await bus.create_streams()
            assert await bus.publish_prompt(task(1)) is (round == 0)
            await bus.close()
        finally:
            server.stop()
