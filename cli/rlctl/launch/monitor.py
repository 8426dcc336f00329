"""What a run tells of itself: the trainer's status, the registry, the files the trainer writes.

Nothing here is needed for the run to go on: what cannot be reached is shown as unknown.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlctl.bus.bus import Bus
from rlctl.bus.config import BusConfig
from rlctl.bus.registry import Instance, Registry
from rlctl.clients.trainer import TrainerClient
from rlctl.core.errors import RlctlError
from rlctl.rpc.config import ChannelConfig
from rlctl.rpc.pool import Pool
from rlctl.rpc.portal import Portal
from rlctl.v1 import trainer_pb2

POLL_S = 1.0
CALL_TIMEOUT_S = 2.0
SERVICES = ("generation", "reward", "reference", "critic", "trainer")


@dataclass(frozen=True)
class Snapshot:
    """How a run stands."""

    state: str = "starting"
    waiting_for: str = ""
    step: int = 0
    total_steps: int = 0
    policy_version: int = 0
    checkpoint_step: int = 0
    ledger: dict[str, int] = field(default_factory=dict)
    instances: list[Instance] = field(default_factory=list)

    def serving(self, service: str) -> int:
        return sum(one.serving for one in self.instances if one.service == service)


class Monitor:
    """Polls a run in the background; `snapshot` is the newest."""

    def __init__(self, bus: BusConfig, channel: ChannelConfig) -> None:
        self.snapshot = Snapshot()
        self._portal = Portal("rlctl-monitor")
        self._future = self._portal.spawn(self._follow, bus, channel)

    def close(self) -> None:
        self._future.cancel()
        self._portal.close()

    async def _follow(self, config: BusConfig, channel: ChannelConfig) -> None:
        while True:
            try:
                bus = await Bus.connect(config, "launcher")
                break
            except RlctlError:
                await asyncio.sleep(POLL_S)
        registry = Registry(bus)
        pool = Pool("trainer", channel, registry)
        try:
            while not bus.closed.is_set():
                self.snapshot = await look(registry, TrainerClient(pool), self.snapshot)
                await asyncio.sleep(POLL_S)
        finally:
            await pool.close()
            await bus.close()


async def look(registry: Registry, trainer: TrainerClient, before: Snapshot) -> Snapshot:
    """Asks once; what does not answer keeps what was known."""
    instances = before.instances
    try:
        async with asyncio.timeout(CALL_TIMEOUT_S):
            instances = [one for service in SERVICES for one in await registry.list(service)]
    except (TimeoutError, RlctlError):
        pass
    told = None
    if any(one.service == "trainer" for one in instances):
        try:
            told = await trainer.get_status(timeout_s=CALL_TIMEOUT_S)
        except RlctlError:
            told = None
    if told is None:
        return Snapshot(**{**vars(before), "instances": instances})
    ledger = told.ledger
    return Snapshot(
        state=trainer_pb2.TrainerState.Name(told.state).removeprefix("TRAINER_STATE_").lower(),
        waiting_for=told.waiting_for,
        step=told.step,
        total_steps=told.total_steps,
        policy_version=told.policy_version,
        checkpoint_step=told.checkpoint_step,
        ledger={
            "issued": ledger.issued, "trained": ledger.trained, "dropped": ledger.dropped, "pending": ledger.pending,
        },
        instances=instances,
    )  # fmt: skip


class Rows:
    """Rows of a jsonl file that grows, and is rewritten when a run goes back to a commit."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._inode = 0
        self.rows: list[dict[str, Any]] = []

    def refresh(self) -> list[dict[str, Any]]:
        """Reads what is new; the new rows."""
        try:
            stat = self._path.stat()
        except FileNotFoundError:
            return []
        if stat.st_ino != self._inode or stat.st_size < self._offset:
            self._inode, self._offset, self.rows = stat.st_ino, 0, []
        new = []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._offset += len(line)
                try:
                    new.append(json.loads(line))
                except ValueError:
                    continue
        self.rows += new
        return new


class Pace:
    """Time left, from the steps of the last minutes."""

    def __init__(self) -> None:
        self._marks: list[tuple[float, int]] = []

    def mark(self, step: int) -> None:
        if not self._marks or self._marks[-1][1] != step:
            self._marks = [*self._marks[-30:], (time.monotonic(), step)]

    def left(self, step: int, total: int) -> float | None:
        """Seconds; None while unknown."""
        if len(self._marks) < 3:
            return None
        (t0, s0), (t1, s1) = self._marks[1], self._marks[-1]
        return (t1 - t0) / (s1 - s0) * max(total - step, 0) if s1 > s0 else None
