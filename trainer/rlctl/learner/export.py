"""A trained model's weights under the names that Hugging Face checkpoints use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlctl.models.names import as_stored, has_other_names
from rlctl.models.quantize import dequantized, full_shape, is_quantized
from rlctl.models.value_head import ValueModel


@dataclass(frozen=True)
class Weight:
    """One tensor of a checkpoint: a parameter, or a base weight with the adapter that is merged into it."""

    name: str
    parameter: nn.Parameter
    lora_a: nn.Parameter | None = None
    lora_b: nn.Parameter | None = None
    scale: float = 0.0

    @property
    def shape(self) -> tuple[int, ...]:
        return full_shape(self.parameter)

    def parts(self) -> list[nn.Parameter]:
        return [part for part in (self.parameter, self.lora_a, self.lora_b) if part is not None]

    def merged(self) -> Tensor:
        """The tensor itself (a view of the parameter), or base + scale * B A, in the base's type.

        A 4-bit base is what its codes stand for.
        """
        base = dequantized(self.parameter) if is_quantized(self.parameter) else self.parameter.detach()
        if self.lora_a is None or self.lora_b is None:
            return base
        delta = self.lora_b.detach().float() @ self.lora_a.detach().float()
        return (base.float() + self.scale * delta).to(base.dtype)


def list_weights(model: PreTrainedModel | ValueModel) -> list[Weight]:
    """Every tensor of the checkpoint in the module's order, tied ones once."""
    weights: list[Weight] = []
    seen: set[int] = set()
    adapters = dict(model.named_modules()) if any("lora_" in name for name, _ in model.named_parameters()) else {}
    for name, parameter in model.named_parameters(remove_duplicate=True):
        if id(parameter) in seen or "lora_" in name:
            continue
        seen.add(id(parameter))
        owner_name, _, leaf = name.rpartition(".")
        clean = checkpoint_name(model, name)
        if leaf == "weight" and owner_name.endswith(".base_layer"):
            layer = adapters[owner_name.removesuffix(".base_layer")]
            key = next(iter(layer.lora_A))
            weights.append(
                Weight(clean, parameter, layer.lora_A[key].weight, layer.lora_B[key].weight, layer.scaling[key])
            )
        else:
            weights.append(Weight(clean, parameter))
    return weights


class Weights:
    """The tensors of a model's checkpoint."""

    def __init__(self, model: PreTrainedModel | ValueModel, partitioned: bool) -> None:
        """`partitioned`: by ZeRO-3, of which all ranks must iterate together."""
        self._backbone = model.backbone if isinstance(model, ValueModel) else model
        self._renamed = has_other_names(self._backbone)
        self._partitioned = partitioned
        self._weights = list_weights(model)

    def shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """(name, shape) in the order of iteration."""
        found = []
        for weight in self._weights:
            empty = torch.empty(weight.shape, device="meta")
            found += [(name, tuple(tensor.shape)) for name, tensor in self._stored(weight.name, empty)]
        return found

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        """(name, tensor) one by one; under ZeRO-3 each is gathered for as long as the caller holds the iteration.

        The tensor may alias the live parameter: use or copy it before asking for the next.
        """
        for weight in self._weights:
            with gathered(weight.parts(), self._partitioned), torch.no_grad():
                yield from self._stored(weight.name, weight.merged())

    def _stored(self, name: str, tensor: Tensor) -> list[tuple[str, Tensor]]:
        return as_stored(self._backbone, name, tensor) if self._renamed else [(name, tensor)]


def gathered(parameters: list[nn.Parameter], partitioned: bool) -> AbstractContextManager[object]:
    """Whole parameters inside the block, whether ZeRO-3 has parted them or not."""
    if not partitioned:
        return nullcontext()
    import deepspeed

    return deepspeed.zero.GatheredParameters(parameters)


def checkpoint_name(model: PreTrainedModel | ValueModel, name: str) -> str:
    """The name of a parameter in the checkpoint of a plain model, without what was put around its layers."""
    name = name.replace(".base_layer.", ".").replace("._orig_mod.", ".")
    if isinstance(model, ValueModel) and name.startswith("backbone."):
        return f"{model.backbone.base_model_prefix}.{name.removeprefix('backbone.')}"
    return name
