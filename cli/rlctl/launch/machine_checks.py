"""What the machines must have: libraries, memory, GPUs, free ports. Each fault comes with the mend in words."""

from __future__ import annotations

import importlib.util
import socket
from collections.abc import Iterator

from rlctl.launch import memory
from rlctl.launch.recipe import ClusterSection, MachinesSection
from rlctl.launch.spec import Plan, ProcessSpec, shares

#: A GPU's own context, and what fragments.
GPU_MEMORY_USABLE = 0.95


def library_faults() -> Iterator[str]:
    """Libraries of training that are not installed."""
    for library in ("ray", "torch", "deepspeed", "reasoning_gym"):
        if importlib.util.find_spec(library) is None:
            yield f"{library} is not installed: training needs rlctl[train] (pip install 'rlctl[train]')"


def memory_faults(plan: Plan) -> Iterator[str]:
    """Whether the processes fit into this machine's memory."""
    needed = sum(process.memory_mb for process in plan.processes) + memory.RAY_MB
    free = memory.available_mb()
    if needed > free:
        largest = sorted(plan.processes, key=lambda process: -process.memory_mb)[:3]
        named = ", ".join(f"{process.name} {process.memory_mb / 1024:.1f}" for process in largest)
        yield (
            f"the run needs about {needed / 1024:.1f} GiB of memory and {free / 1024:.1f} are free (most of it: "
            f"{named}): choose a smaller model, lower generation.kv_cache_mb or micro_batch_tokens, use bfloat16 or "
            "LoRA, or share states over ranks (zero_stage)"
        )


def gpu_faults(cluster: MachinesSection, plan: Plan, gpus: int | None) -> Iterator[str]:
    """Whether there are enough GPUs, and each holds what it is to hold."""
    needed = sum(shares(plan.processes).values())
    if not needed:
        return
    promised = cluster.nodes * cluster.gpus_per_node
    there = promised if gpus is None else gpus
    if needed > there:
        have = f"cluster.nodes x cluster.gpus_per_node = {promised}" if gpus is None else f"Ray sees {gpus}"
        roles = ", ".join(f"{service} {count}" for service, count in _gpus_by_service(plan.processes).items())
        sharing = f"; cluster.colocate = {cluster.colocate!r}" if isinstance(cluster, ClusterSection) else ""
        mend = "lower ranks or replicas, or share GPUs (cluster.colocate)" if sharing else "lower learner.ranks"
        yield f"the run needs {needed} GPUs ({roles}{sharing}) and {have}: {mend}"
    if cluster.gpu_memory_gb is None:
        return
    for share, members in _sharing(plan.processes).items():
        need = sum(process.gpu_memory_gb for process in members)
        if need > cluster.gpu_memory_gb * GPU_MEMORY_USABLE:
            parts = ", ".join(f"{process.name} {process.gpu_memory_gb:.0f}" for process in members)
            yield (
                f"GPU {share} of {cluster.gpu_memory_gb:.0f} GB would have to hold {need:.0f} GB ({parts}): use more "
                "ranks, zero_stage = 3, adam_offload, LoRA, gradient_checkpointing, a smaller micro_batch_tokens or "
                "generation.gpu_memory_utilization, or share less (cluster.colocate)"
            )


def _gpus_by_service(processes: list[ProcessSpec]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for process in processes:
        if process.gpus:
            counts[process.service] = counts.get(process.service, 0) + process.gpus
    return counts


def _sharing(processes: list[ProcessSpec]) -> dict[str, list[ProcessSpec]]:
    """Processes by the first GPU they use."""
    members: dict[str, list[ProcessSpec]] = {}
    for process in processes:
        if process.gpus:
            for gpu in range(process.share_offset, process.share_offset + process.gpus):
                members.setdefault(f"{process.share or process.name}/{gpu}", []).append(process)
    return members


def busy(host: str, port: int) -> bool:
    """Whether something listens on a port of this machine."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return True
    return False
