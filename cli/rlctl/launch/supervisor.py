"""Keeps the processes of a plan alive until the trainer is done.

A process that fails is started again after a delay, with the processes of its group: services and workers
alone; the critic and every trainer rank together, because the critic must go back to the trainer's commit.
Before a group is started again all of it is gone, engine processes included.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rlctl.core.errors import InternalError
from rlctl.launch.host import Exit, Host, Running
from rlctl.launch.restart import GiveUp, RestartPolicy
from rlctl.launch.spec import Plan, ProcessSpec

DRAIN_S = 15.0
TAIL_LINES = 20


class RunFailedError(InternalError):
    """A process failed too often; the message has the end of its log."""

    reason = "RUN_FAILED"


@dataclass
class _Group:
    specs: list[ProcessSpec]
    running: list[Running] = field(default_factory=list)
    life: int = 0
    start_at: float | None = None


@dataclass(frozen=True)
class Restart:
    """Something failed and will be started again."""

    name: str
    why: str
    with_others: list[str]


class Supervisor:
    """`on_restart` hears of every restart."""

    def __init__(self, plan: Plan, host: Host, policy: RestartPolicy, on_restart: Callable[[Restart], None]) -> None:
        self._host = host
        self._policy = policy
        self._on_restart = on_restart
        self._groups: dict[str, _Group] = {}
        for spec in plan.processes:
            self._groups.setdefault(spec.restart_group, _Group([])).specs.append(spec)
        trainer = [spec for spec in plan.of("trainer") if spec.rank == 0]
        self._trainer = trainer[0] if trainer else None
        self._done = False
        self._stopping = False

    def start(self, names: Callable[[ProcessSpec], bool] = lambda spec: True) -> None:
        """Starts the groups whose first process is meant and that do not run yet."""
        for group in self._groups.values():
            if not group.running and names(group.specs[0]):
                group.running = self._host.start(group.specs, group.life)

    def alive(self) -> dict[str, bool]:
        """Whether each process runs now."""
        running = {one.spec.name for one in self._running()}
        return {spec.name: spec.name in running for group in self._groups.values() for spec in group.specs}

    def tick(self, timeout_s: float) -> bool:
        """Waits at most `timeout_s` for something to happen and deals with it; True once the trainer is done.

        Raises RunFailedError when a process has failed too often.
        """
        self._start_due()
        for one, exit_ in self._host.wait(self._running(), timeout_s):
            group = self._groups[one.spec.restart_group]
            if one not in group.running:
                continue
            group.running.remove(one)
            if one.spec.service != "trainer" or exit_.code != 0:
                self._failed(group, one, exit_)
            elif one.spec is self._trainer:
                self._done = True
        return self._done

    def stop(self, timeout_s: float, on_tick: Callable[[], None]) -> bool:
        """Asks the trainer to end its step and commit; True when it did within `timeout_s`.

        Everything else keeps running meanwhile, for the step in hand needs it; `on_tick` is called between waits.
        """
        self._stopping = True
        for one in self._running():
            if one.spec is self._trainer:
                self._host.signal(one, signal.SIGTERM)
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            on_tick()
            if self.tick(0.25):
                return True
            if not any(one.spec is self._trainer for one in self._running()):
                return False
        return False

    def kill(self) -> None:
        """Ends everything now."""
        self._stopping = True
        self._host.kill(self._running())
        for group in self._groups.values():
            group.running, group.start_at = [], None

    def close(self, hurry: Callable[[], bool] = lambda: False) -> None:
        """Ends everything in order: SIGTERM, time to drain unless there is a hurry, then the kill."""
        self._stopping = True
        last = [one for one in self._running() if one.spec.service == "nats"]
        for batch in ([one for one in self._running() if one not in last], last):
            for one in batch:
                self._host.signal(one, signal.SIGTERM)
            deadline = time.monotonic() + DRAIN_S
            left = list(batch)
            while left and time.monotonic() < deadline and not hurry():
                ended = [one for one, _ in self._host.wait(left, 0.25)]
                left = [one for one in left if one not in ended]
            if left:
                self._host.kill(left)
        for group in self._groups.values():
            group.running = []

    def _running(self) -> list[Running]:
        return [one for group in self._groups.values() for one in group.running]

    def _failed(self, group: _Group, one: Running, exit_: Exit) -> None:
        others = [spec.name for spec in group.specs if spec.name != one.spec.name]
        if group.running:
            self._host.kill(group.running)
        group.running = []
        if self._done or (self._stopping and self._trainer in group.specs):
            return
        try:
            delay = self._policy.delay(one.spec.name, exit_.code, exit_.seconds)
        except GiveUp as reason:
            raise RunFailedError(self._epitaph(one.spec.name, exit_, str(reason))) from None
        self._on_restart(Restart(one.spec.name, str(exit_), others))
        group.life += 1
        group.start_at = time.monotonic() + delay

    def _start_due(self) -> None:
        for group in self._groups.values():
            if group.start_at is not None and group.start_at <= time.monotonic():
                group.start_at = None
                group.running = self._host.start(group.specs, group.life)

    def _epitaph(self, name: str, exit_: Exit, reason: str) -> str:
        lines = exit_.tail.strip().split("\n")[-TAIL_LINES:]
        first = next((number for number, line in enumerate(lines) if " ERROR " in line), 0)
        lines = lines[first:]
        log = self._host.log_path(name)
        return f"{name} {exit_}: {reason}. The end of {log}:\n" + "\n".join(f"  {line}" for line in lines)
