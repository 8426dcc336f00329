"""A learner's state: metric sums of a step, and the files of a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from rlctl.core.errors import ConfigError
from rlctl.learner import distributed
from rlctl.learner.config import LearnerConfig
from rlctl.learner.ema import WeightAverage

#: Folder of DeepSpeed's own files.
_ENGINE = "engine"
_FACTS = "learner.json"


class MetricSums:
    """Sums and counts by name, over micro-batches and then over ranks."""

    def __init__(self) -> None:
        self._parts: dict[str, list[tuple[Any, Any]]] = {}

    def add(self, metrics: Mapping[str, tuple[Tensor | float, Tensor | float]]) -> None:
        for name, (total, count) in metrics.items():
            kept = (total.detach() if isinstance(total, Tensor) else total, count)
            self._parts.setdefault(name, []).append(kept)

    def reduced(self) -> dict[str, float]:
        """Global sum / global count by name (count 0: the sum itself), the same on every rank."""
        mine = {
            name: [sum(float(total) for total, _ in parts), sum(float(count) for _, count in parts)]
            for name, parts in self._parts.items()
        }
        sums: dict[str, list[float]] = {}
        for data in distributed.gather_bytes(json.dumps(mine).encode()):
            for name, (total, count) in json.loads(data).items():
                kept = sums.setdefault(name, [0.0, 0.0])
                kept[0] += total
                kept[1] += count
        return {name: total / count if count else total for name, (total, count) in sums.items()}


def save(
    folder: Path, engine: Any, average: WeightAverage | None, config: LearnerConfig, steps: int, device: torch.device
) -> None:
    """What `load` goes back to; all ranks call it. Frozen weights are those of the base, and left out."""
    folder.mkdir(parents=True, exist_ok=True)
    adapters = config.lora is not None
    engine.save_checkpoint(str(folder), tag=_ENGINE, save_latest=False, exclude_frozen_parameters=adapters)
    rank = distributed.rank()
    _save_rng(folder, rank, device)
    if average is not None:
        average.save(folder)
    if rank == 0:
        facts = {"steps": steps, "ranks": distributed.world_size(), "zero_stage": config.zero_stage}
        (folder / _FACTS).write_text(json.dumps(facts))
    distributed.barrier()


def load(folder: Path, engine: Any, average: WeightAverage | None, config: LearnerConfig, device: torch.device) -> int:
    """The optimizer steps that were taken. Raises ConfigError for another number of ranks or ZeRO stage."""
    facts = _read_facts(folder, distributed.world_size(), config.zero_stage)
    engine.load_checkpoint(str(folder), tag=_ENGINE, load_module_strict=config.lora is None)
    _load_rng(folder, distributed.rank(), device)
    if average is not None:
        average.load(folder)
    distributed.barrier()
    return facts["steps"]


def _save_rng(folder: Path, rank: int, device: torch.device) -> None:
    """The RNG states of this rank."""
    tensors = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        tensors["cuda"] = torch.cuda.get_rng_state(device)
    save_file(tensors, folder / f"rng-{rank:05d}.safetensors")


def _load_rng(folder: Path, rank: int, device: torch.device) -> None:
    """The inverse of `_save_rng`."""
    tensors = load_file(folder / f"rng-{rank:05d}.safetensors")
    torch.set_rng_state(tensors["cpu"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(tensors["cuda"], device)


def _read_facts(folder: Path, ranks: int, zero_stage: int) -> dict[str, int]:
    """What `save` noted. Raises ConfigError for another number of ranks or ZeRO stage."""
    facts: dict[str, int] = json.loads((folder / _FACTS).read_text())
    if (facts["ranks"], facts["zero_stage"]) != (ranks, zero_stage):
        raise ConfigError(
            f"{folder} was written by {facts['ranks']} ranks with ZeRO stage {facts['zero_stage']}, this learner has "
            f"{ranks} and {zero_stage}: set learner.ranks and learner.zero_stage as they were, or start from the "
            "exported model",
            reason="CHECKPOINT_LAYOUT",
        )
    return facts
