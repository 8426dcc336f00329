"""Tensors of a model under the names and shapes that checkpoints on the hub use.

transformers holds the experts of a layer in one tensor; checkpoints, and vLLM, know them one by one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, revert_weight_conversion


def has_other_names(model: PreTrainedModel) -> bool:
    """Whether loading made other tensors of those in the checkpoint."""
    conversions = getattr(model, "_weight_conversions", None)
    if conversions is None:
        conversions = get_model_conversion_mapping(model, add_legacy=False)
    return any(isinstance(one, WeightConverter) for one in conversions or [])


def as_stored(model: PreTrainedModel, name: str, tensor: Tensor) -> list[tuple[str, Tensor]]:
    """What the checkpoint has for one tensor of `model`, of which `has_other_names` holds."""
    return list(revert_weight_conversion(model, {name: tensor}).items())


@dataclass(frozen=True)
class Place:
    """Where a tensor of the checkpoint lies in a live model."""

    parameter: Tensor
    index: Tensor | None
    """Of each of its elements in the flat parameter; None: the parameter as it is."""

    @property
    def shape(self) -> torch.Size:
        return (self.parameter if self.index is None else self.index).shape

    def put(self, tensor: Tensor) -> None:
        if self.index is None:
            self.parameter.data.copy_(tensor)
        else:
            self.parameter.data.view(-1)[self.index] = tensor.to(self.parameter.dtype)


def places(model: PreTrainedModel) -> dict[str, Place]:
    """By the checkpoint's names, tied weights once."""
    if not has_other_names(model):
        return {name: Place(parameter, None) for name, parameter in model.named_parameters()}
    found = {}
    for name, parameter in model.named_parameters():
        numbers = torch.arange(parameter.numel()).view(parameter.shape)
        for stored, index in as_stored(model, name, numbers):
            whole = index.shape == parameter.shape and torch.equal(index, numbers)
            found[stored] = Place(parameter, None if whole else index)
    return found
