"""What is done to a model before DeepSpeed wraps it: adapters, checkpointing, compiled layers."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from rlctl.learner.config import LearnerConfig, LoRAConfig
from rlctl.models import attention
from rlctl.models.flash import check_ring
from rlctl.models.moe import expert_blocks, experts_per_token
from rlctl.models.quantize import quantize_linears
from rlctl.models.residual import float_residual
from rlctl.models.value_head import ValueModel
from rlctl.models.widen import widen_linears

M = TypeVar("M", PreTrainedModel, ValueModel)


def prepare(model: M, config: LearnerConfig, device: torch.device) -> M:
    """Applies the settings to the model, in place, and returns it. 4-bit weights go to `device`."""
    backbone = model.backbone if isinstance(model, ValueModel) else model
    if config.lora is not None:
        if config.lora.quantize_4bit:
            head = backbone.get_output_embeddings()
            quantize_linears(backbone, [] if head is None else [head], device)
        _add_adapters(model, backbone, config.lora)
    if config.sequence_parallel > 1:
        _share_sequences(backbone, config)
    if config.aux_loss_coef:
        experts_per_token(backbone.config)
    if config.zero_stage == 3 and (blocks := expert_blocks(model)):
        from deepspeed.utils import set_z3_leaf_modules

        set_z3_leaf_modules(model, blocks)
    if config.residual_float32:
        float_residual(backbone)
    if config.gradient_checkpointing:
        backbone.gradient_checkpointing_enable({"use_reentrant": False})
        if config.lora is not None:
            backbone.enable_input_require_grads()
    widen_linears(model)
    if config.compile_layers:
        for layer in backbone.modules():
            if isinstance(layer, GradientCheckpointingLayer):
                layer.compile(dynamic=True)
    return model


def _share_sequences(backbone: PreTrainedModel, config: LearnerConfig) -> None:
    """Attention through ours, which exchanges between ranks, with the kernel that would run without."""
    if config.sequence_parallel_attention == "ring":
        check_ring()
        backbone.config.rlctl_kernel = "ring"
    elif backbone.config._attn_implementation == "flash_attention_2":
        backbone.config.rlctl_kernel = "flash_attention_2"
    if backbone.config._attn_implementation != attention.NAME:
        backbone.set_attn_implementation(attention.NAME)


def _add_adapters(model: nn.Module, backbone: PreTrainedModel, lora: LoRAConfig) -> None:
    """LoRA (Hu et al., 2021) on the backbone; all else is frozen, but for a value model's head."""
    from peft import LoraConfig, inject_adapter_in_model

    settings = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=lora.target_modules,
        task_type="CAUSAL_LM" if not isinstance(model, ValueModel) else "FEATURE_EXTRACTION",
    )
    inject_adapter_in_model(settings, backbone)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name or name.startswith("score."))
        if "lora_" in name:
            parameter.data = parameter.data.to(backbone.dtype)
