"""Whether a model draws at random while it is trained."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.dropout import _DropoutNd
from transformers import PretrainedConfig

#: Beginnings of settings that speak of heads which are not used here.
_OTHER_HEADS = ("summary_", "classifier_")


def draws(module: nn.Module, config: PretrainedConfig) -> bool:
    """Whether two forward passes in train mode differ: dropout, of adapters too, or noise on a router's input.

    Some models call dropout as a function; it shows in their configuration alone.
    """
    if any(isinstance(part, _DropoutNd) and part.p > 0 for part in module.modules()):
        return True
    named = {name: value for name, value in config.to_dict().items() if not name.startswith(_OTHER_HEADS)}
    return any(isinstance(value, float) and value > 0 for name, value in named.items() if _is_random(name))


def _is_random(name: str) -> bool:
    return "drop" in name or "jitter" in name
