"""4-bit weights (NF4, Dettmers et al., 2023) by bitsandbytes, on GPUs and on CPUs."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn

from rlctl.core.errors import ConfigError


def quantize_linears(model: nn.Module, keep: Collection[nn.Module], device: torch.device) -> None:
    """Replaces every `nn.Linear` of `model` but those in `keep` by a frozen 4-bit layer on `device`, one at a time.

    Products run in the type that the weights had. Raises ConfigError where bitsandbytes is missing.
    """
    try:
        import bitsandbytes
    except ImportError as error:
        raise ConfigError("lora.quantize_4bit needs bitsandbytes: pip install 'rlctl[train]'") from error
    kept = {id(module) for module in keep}
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and id(child) not in kept:
                setattr(parent, name, _quantized(child, bitsandbytes, device))
    vars(model)["is_loaded_in_4bit"] = True  # peft asks for it
    if not any(is_quantized(parameter) for parameter in model.parameters()):
        raise ConfigError(f"{type(model).__name__} has no linear layers that could be held in 4 bits")


def _quantized(linear: nn.Linear, bitsandbytes: Any, device: torch.device) -> nn.Module:
    with torch.device("meta"):
        layer = bitsandbytes.nn.Linear4bit(
            linear.in_features,
            linear.out_features,
            bias=linear.bias is not None,
            compute_dtype=linear.weight.dtype,
            quant_type="nf4",
        )
    layer.weight = bitsandbytes.nn.Params4bit(linear.weight.data, requires_grad=False, quant_type="nf4", module=layer)
    if linear.bias is not None:
        layer.bias = linear.bias
    # Its fast path for inference repacks the weights in place, and they could be neither trained on nor saved then.
    layer.support_avx512bf16_for_cpu = False
    return layer.to(device)


def is_quantized(parameter: Tensor) -> bool:
    """Whether a parameter holds 4-bit codes instead of numbers."""
    return getattr(parameter, "quant_state", None) is not None


def dequantized(parameter: Any) -> Tensor:
    """The numbers that 4-bit codes stand for, in the type the weight had."""
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(parameter.data, parameter.quant_state)


def full_shape(parameter: Any) -> tuple[int, ...]:
    """The shape of a weight, 4-bit or partitioned (ZeRO-3) or neither."""
    if is_quantized(parameter):
        return tuple(parameter.quant_state.shape)
    return tuple(getattr(parameter, "ds_shape", parameter.shape))
