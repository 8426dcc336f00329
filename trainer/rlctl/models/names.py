"""Tensors of a model under the names and shapes that checkpoints on the hub use.

transformers holds the experts of a layer in one tensor; checkpoints, and vLLM, know them one by one.
"""

from __future__ import annotations

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
