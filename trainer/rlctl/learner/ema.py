"""An exponential moving average of the trained weights, float32 in CPU memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rlctl.learner import distributed


class WeightAverage:
    """`average = decay * average + (1 - decay) * weight` after each optimizer step, from the first weights on.

    Under ZeRO-3 each rank keeps the average of its own part of every weight; otherwise rank 0 keeps it whole, for
    only it exports, and gives it to the others for as long as they measure it. No call here communicates but
    `swapped_in`.
    """

    def __init__(self, module: nn.Module, decay: float, partitioned: bool, rank: int) -> None:
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        self._holds = partitioned or rank == 0
        self._decay = decay
        self._partitioned = partitioned
        self._rank = rank
        self._averages = [self._now(parameter) for parameter in self._held_parameters]

    @property
    def _held_parameters(self) -> list[nn.Parameter]:
        """Those of which this rank keeps the average, or its part."""
        return self._parameters if self._holds else []

    def update(self) -> None:
        for average, parameter in zip(self._averages, self._held_parameters, strict=True):
            average.lerp_(self._now(parameter), 1.0 - self._decay)

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """The model holds the average for as long as the block runs (all ranks enter it together)."""
        whole = [p for p in self._parameters if self._partitioned and _available(p)]
        _partition(whole)
        kept = [self._held(parameter).clone() for parameter in self._parameters]
        if self._holds:
            self._write(self._averages)
        if not self._partitioned:
            self._share()
        try:
            yield
        finally:
            _partition([p for p in self._parameters if self._partitioned and _available(p)])
            self._write(kept)
            for parameter in whole:
                parameter.all_gather()  # type: ignore[attr-defined]

    def save(self, folder: Path) -> None:
        if self._holds:
            save_file({f"{index:06d}": tensor for index, tensor in enumerate(self._averages)}, self._file(folder))

    def load(self, folder: Path) -> None:
        """The inverse of `save`; from a checkpoint without an average it starts at the weights of today."""
        stored = load_file(self._file(folder)) if self._file(folder).exists() else {}
        for index, (average, parameter) in enumerate(zip(self._averages, self._held_parameters, strict=True)):
            average.copy_(stored[f"{index:06d}"] if stored else self._now(parameter))

    def _file(self, folder: Path) -> Path:
        return folder / f"ema-{self._rank:05d}.safetensors"

    def _held(self, parameter: Any) -> Tensor:
        """The numbers this rank holds: a whole weight, or its part of one."""
        return (parameter.ds_tensor if self._partitioned else parameter).data

    def _now(self, parameter: nn.Parameter) -> Tensor:
        return self._held(parameter).detach().to("cpu", torch.float32, copy=True)

    def _share(self) -> None:
        """Every rank's model becomes rank 0's."""
        for parameter in self._parameters:
            distributed.broadcast_tensor(parameter)

    def _write(self, values: list[Tensor]) -> None:
        for parameter, value in zip(self._parameters, values, strict=True):
            self._held(parameter).copy_(value)


def _available(parameter: Any) -> bool:
    """ZeRO-3 keeps small weights whole on every rank, beside the parts."""
    from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus

    return bool(parameter.ds_status == ZeroParamStatus.AVAILABLE)


def _partition(parameters: list[Any]) -> None:
    for parameter in parameters:
        parameter.partition(has_been_updated=False)
