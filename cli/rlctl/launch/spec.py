"""What a plan is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Service = Literal["nats", "generation", "reward", "reference", "critic", "rollout", "trainer"]

#: Where a configuration needs the address of the machine its process runs on; filled in at the start.
NODE_IP = "{node_ip}"


@dataclass(frozen=True)
class ProcessSpec:
    """One process to start and keep."""

    name: str
    """`<service>-<index>`; names the log and the configuration."""
    service: Service
    module: str
    """Run as `python -m module --config FILE`."""
    config: dict[str, Any]
    """JSON settings of the process."""
    rank: int = 0
    ranks: int = 1
    group: str = ""
    """Processes of one group are ended and restarted together; default: the process alone."""
    env: dict[str, str] = field(default_factory=dict)
    gpus: int = 0
    share: str = ""
    """Processes with the same share name sit on the same set of GPUs."""
    share_offset: int = 0
    """Its first GPU within the share."""
    memory_mb: int = 0
    """What it is expected to take of the machine's memory, MiB."""
    gpu_memory_gb: float = 0.0
    """What it is expected to take of each of its GPUs, GB."""

    @property
    def restart_group(self) -> str:
        return self.group or self.name


@dataclass(frozen=True)
class Plan:
    """A run, ready to be started."""

    run: str
    processes: list[ProcessSpec]
    notes: list[str] = field(default_factory=list)
    """What a person should know before it starts."""

    def of(self, service: Service) -> list[ProcessSpec]:
        return [process for process in self.processes if process.service == service]


def shares(processes: Sequence[ProcessSpec]) -> dict[str, int]:
    """GPUs of each share: as many as its largest member needs."""
    needed: dict[str, int] = {}
    for process in processes:
        if process.gpus:
            share = process.share or process.name
            needed[share] = max(needed.get(share, 0), process.share_offset + process.gpus)
    return needed
