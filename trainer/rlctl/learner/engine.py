"""The DeepSpeed engine of a learner."""

from __future__ import annotations

import logging
import math
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from rlctl.learner.config import LearnerConfig


def deepspeed_config(config: LearnerConfig, ranks: int, device: torch.device) -> dict[str, Any]:
    """DeepSpeed's settings. Accumulation is one step, of which the learner sets the boundary by hand."""
    stage = config.zero_stage
    zero: dict[str, Any] = {"stage": stage}
    if stage:
        zero |= {"overlap_comm": config.overlap_comm, "contiguous_gradients": True, "reduce_bucket_size": 50_000_000}
    if stage in (1, 2):
        zero |= {"allgather_bucket_size": 200_000_000}
    if stage == 3:
        zero |= {"stage3_gather_16bit_weights_on_model_save": False}
    if config.adam_offload:
        zero |= {"offload_optimizer": {"device": "cpu", "pin_memory": device.type == "cuda"}}
    tree: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "train_batch_size": ranks,
        "zero_optimization": zero,
        "gradient_clipping": 0.0 if clips_itself(config) else config.optimizer.max_grad_norm,
        "steps_per_print": None,
        "wall_clock_breakdown": False,
        # Where the model is on the CPU too, PyTorch's AdamW does as well as DeepSpeed's, which must be compiled.
        "zero_force_ds_cpu_optimizer": device.type == "cuda",
    }
    if config.dtype == "bfloat16":
        # Without ZeRO, DeepSpeed adds up gradients in the model's type alone.
        tree |= {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32" if stage else "bf16"}}
    return tree


def clips_itself(config: LearnerConfig) -> bool:
    """Whether the learner clips: without ZeRO and in float32 DeepSpeed reports no gradient norm."""
    return config.zero_stage == 0 and config.dtype == "float32"


def clip(module: nn.Module, config: LearnerConfig) -> float | None:
    """The gradient's norm, where the learner clips itself, else None; one that is not finite is thrown away.

    DeepSpeed's own optimizers do the same, and say so in `overflow`.
    """
    if not clips_itself(config):
        return None
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    norm = float(nn.utils.clip_grad_norm_(trained, config.optimizer.max_grad_norm or float("inf")))
    if math.isfinite(norm):
        return norm
    for parameter in trained:
        parameter.grad = None
    return math.inf


def build_engine(module: nn.Module, config: LearnerConfig, ranks: int, device: torch.device) -> Any:
    """Wraps `module` in a DeepSpeed engine with AdamW over its trainable parameters."""
    _skip_shared_memory_op(device)
    import deepspeed

    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=r"`torch\.distributed\..*` is deprecated", category=FutureWarning)
    if device.type == "cuda":
        module.to(device)
    engine, *_ = deepspeed.initialize(
        model=module,
        optimizer=_adamw(module, config, device),
        config=deepspeed_config(config, ranks, device),
        dist_init_required=False,
    )
    return engine


def whole_gradient(engine: Any, config: LearnerConfig) -> Tensor:
    """The reduced gradient before clipping: float32, flat, in the order of the parameters, on the CPU."""
    from deepspeed.utils import safe_get_full_grad

    parts = []
    for parameter in engine.module.parameters():
        if parameter.requires_grad:
            gradient = parameter.grad if config.zero_stage == 0 else None
            gradient = safe_get_full_grad(parameter) if gradient is None else gradient
            parts.append(gradient.detach().float().flatten().cpu())
    return torch.cat(parts)


def _adamw(module: nn.Module, config: LearnerConfig, device: torch.device) -> torch.optim.Optimizer:
    """Decays matrices only. PyTorch's fused AdamW resumes exactly; offloaded states need DeepSpeed's on the CPU."""
    settings = config.optimizer
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    decayed = [p for p in trained if len(getattr(p, "ds_shape", p.shape)) > 1]
    others = [p for p in trained if len(getattr(p, "ds_shape", p.shape)) <= 1]
    groups = [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}]
    groups = [group for group in groups if group["params"]]
    if settings.weight_decay == 0.0:
        groups = [{"params": trained, "weight_decay": 0.0}]
    if config.adam_offload and device.type == "cuda":
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        return DeepSpeedCPUAdam(groups, lr=settings.lr, betas=settings.betas, eps=settings.eps)
    return torch.optim.AdamW(groups, lr=settings.lr, betas=settings.betas, eps=settings.eps, fused=True)


def _skip_shared_memory_op(device: torch.device) -> None:
    """DeepSpeed would compile (31 s, and it needs g++) an op that only its inference on CPUs uses."""
    if device.type == "cpu":
        import deepspeed.ops

        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
