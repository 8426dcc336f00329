"""Prompt groups a second through `rlctl.bus` and through bare nats-py, on one server that syncs every write.

A round stores `--groups` groups of `--bytes` bytes, `--together` at a time, then fetches and acknowledges them
(waiting for each acknowledgement), as a training step does. Rounds alternate between the two, and the medians are
compared:

    python tests/bench/bus_queue.py            prints one JSON line; "ratio" is bus / raw
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import nats
from nats.js.api import ConsumerConfig, RetentionPolicy, StorageType, StreamConfig

from rlctl.bus.bus import Bus
from rlctl.bus.config import BusConfig
from rlctl.bus.server import NatsServer
from rlctl.v1.rollout_pb2 import GroupId, PromptTask, RolloutGroup

Seconds = tuple[float, float]


async def bus_round(bus: Bus, groups: list[RolloutGroup], together: int) -> Seconds:
    """Seconds to store and to take all groups."""
    begin = time.perf_counter()
    for start in range(0, len(groups), together):
        await asyncio.gather(*(bus.publish_rollout(group) for group in groups[start : start + together]))
    stored = time.perf_counter()
    consumer = await bus.rollout_consumer(1, 4096)
    left = len(groups)
    while left:
        deliveries = await consumer.fetch(min(together, left), 5.0)
        await asyncio.gather(*(delivery.ack_sync() for delivery in deliveries))
        left -= len(deliveries)
    taken = time.perf_counter()
    await consumer.close()
    return stored - begin, taken - stored


async def raw_round(client: nats.NATS, messages: list[tuple[str, bytes]], together: int) -> Seconds:
    """The same with nats-py's own publish, fetch and ack_sync."""
    js = client.jetstream()
    begin = time.perf_counter()
    for start in range(0, len(messages), together):
        await asyncio.gather(
            *(
                js.publish(f"raw.{id}", data, headers={"Nats-Msg-Id": id})
                for id, data in messages[start : start + together]
            )
        )
    stored = time.perf_counter()
    subscription = await js.pull_subscribe(
        "raw.>", durable="raw", stream="raw", config=ConsumerConfig(max_ack_pending=4096)
    )
    left = len(messages)
    while left:
        deliveries = await subscription.fetch(min(together, left), 5.0)
        await asyncio.gather(*(delivery.ack_sync(timeout=10.0) for delivery in deliveries))
        left -= len(deliveries)
    taken = time.perf_counter()
    await subscription.unsubscribe()
    return stored - begin, taken - stored


def make_groups(round: int, count: int, size: int) -> list[RolloutGroup]:
    return [
        RolloutGroup(task=PromptTask(id=GroupId(run="bench", epoch=round, prompt=index), prompt="x" * size))
        for index in range(count)
    ]


async def measure(url: str, options: argparse.Namespace) -> dict[str, float]:
    bus = await Bus.connect(BusConfig(url=url, run="bench"), "bench")
    await bus.create_streams()
    client = await nats.connect(url)
    await client.jetstream().add_stream(
        StreamConfig(
            name="raw",
            subjects=["raw.>"],
            retention=RetentionPolicy.WORK_QUEUE,
            storage=StorageType.FILE,
            duplicate_window=120,
        )
    )
    rounds: dict[str, list[Seconds]] = {"bus": [], "raw": []}
    for round in range(options.rounds + 1):
        groups = make_groups(round, options.groups, options.bytes)
        messages = [(f"{round}.{index}", group.SerializeToString()) for index, group in enumerate(groups)]

        async def with_bus(groups: list[RolloutGroup] = groups) -> Seconds:
            return await bus_round(bus, groups, options.together)

        async def without(messages: list[tuple[str, bytes]] = messages) -> Seconds:
            return await raw_round(client, messages, options.together)

        order: list[tuple[str, Callable[[], Awaitable[Seconds]]]] = [("bus", with_bus), ("raw", without)]
        for name, run in order if round % 2 else order[::-1]:
            rounds[name].append(await run())
    await bus.close()
    await client.close()
    return summary({name: seconds[1:] for name, seconds in rounds.items()}, options.groups)


def summary(rounds: dict[str, list[Seconds]], groups: int) -> dict[str, float]:
    """Groups a second, medians over the rounds; the first round is warm-up and not among them."""
    rates = {}
    for name, seconds in rounds.items():
        rates[f"{name}_store"] = groups / statistics.median(store for store, _ in seconds)
        rates[f"{name}_take"] = groups / statistics.median(take for _, take in seconds)
        rates[name] = groups / statistics.median(store + take for store, take in seconds)
    rates["ratio"] = rates["bus"] / rates["raw"]
    return {name: round(rate, 3) for name, rate in rates.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=320)
    parser.add_argument("--bytes", type=int, default=8192)
    parser.add_argument("--together", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = NatsServer(Path(folder))
        url = server.start()
        try:
            rates = asyncio.run(measure(url, options))
        finally:
            server.stop()
    print(json.dumps({"bench": "queue", "unit": "groups/s", **vars(options), **rates}))


if __name__ == "__main__":
    main()
