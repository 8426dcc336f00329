"""Which GPUs of which machine a process gets.

Ray reserves whole GPUs, one bundle of a placement group for each set of processes that share them; a holder
actor in each bundle keeps them and tells their ids. The processes themselves ask Ray for no GPU: they are
sent to the holder's machine and see exactly its GPUs, so that one process may have a share of several.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rlctl.core.errors import ResourceExhaustedError
from rlctl.launch.spec import ProcessSpec, shares


@dataclass(frozen=True)
class Seat:
    """GPUs of one machine."""

    node_id: str
    gpu_ids: list[str]


class _Holder:
    def seat(self) -> tuple[str, list[str]]:
        gpu_ids = [str(gpu) for gpu in ray.get_gpu_ids()]
        return ray.get_runtime_context().get_node_id(), gpu_ids


class GpuPlacement:
    """Holds the GPUs of a run. Raises ResourceExhaustedError when the cluster does not have them free."""

    def __init__(self, processes: Sequence[ProcessSpec], timeout_s: float = 60.0) -> None:
        needed = shares(processes)
        bundles = [{"GPU": count} for count in needed.values()]
        self._group = placement_group(bundles, strategy="PACK")
        if not self._group.wait(timeout_s):
            resources: Any = ray.available_resources
            free = resources().get("GPU", 0)
            remove_placement_group(self._group)
            wanted = ", ".join(f"{share} ({count})" for share, count in needed.items())
            raise ResourceExhaustedError(
                f"Ray has {free:.0f} free GPUs and could not place {wanted} within {timeout_s:.0f} s: lower the ranks "
                "and replicas, share GPUs (cluster.colocate), or add machines"
            )
        holder: Any = ray.remote(_Holder)
        self._holders: list[Any] = []
        self._seats: dict[str, Seat] = {}
        for index, (share, count) in enumerate(needed.items()):
            strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index)
            actor = holder.options(num_cpus=0, num_gpus=count, scheduling_strategy=strategy).remote()
            node_id, gpu_ids = ray.get(actor.seat.remote(), timeout=timeout_s)
            self._holders.append(actor)
            self._seats[share] = Seat(node_id, gpu_ids)

    def seat(self, process: ProcessSpec) -> Seat:
        """The GPUs of a process within its share."""
        seat = self._seats[process.share or process.name]
        return Seat(seat.node_id, seat.gpu_ids[process.share_offset :][: process.gpus])

    def close(self) -> None:
        for holder in self._holders:
            ray.kill(holder)
        remove_placement_group(self._group)
