"""Settings of a learner: one DeepSpeed engine around one model."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from rlctl.core.config import StrictConfig


class OptimizerConfig(StrictConfig):
    """AdamW and its schedule."""

    lr: float = Field(1e-6, gt=0)
    """Peak learning rate."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Adam's decay rates."""
    eps: float = Field(1e-8, gt=0)
    """Adam's epsilon."""
    weight_decay: float = Field(0.0, ge=0)
    """Decoupled weight decay; not on biases and norms."""
    max_grad_norm: float = Field(1.0, ge=0)
    """Clip the global gradient norm; 0 clips nothing."""
    scheduler: Literal["constant", "linear", "cosine"] = "constant"
    """Shape after the warm-up."""
    warmup_steps: int = Field(0, ge=0)
    """Optimizer steps from 0 to `lr`."""
    warmup_ratio: float = Field(0.0, ge=0, lt=1)
    """Share of all optimizer steps from 0 to `lr`, where `warmup_steps` is 0."""
    min_lr_ratio: float = Field(0.0, ge=0, le=1)
    """Where linear and cosine end, as a share of `lr`."""


class LoRAConfig(StrictConfig):
    """Low-rank adapters instead of full weights."""

    rank: int = Field(16, ge=1)
    """Rank of the adapters."""
    alpha: float = Field(32.0, gt=0)
    """Scale: alpha / rank."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout on the adapters' input."""
    target_modules: list[str] | Literal["all-linear"] = "all-linear"
    """Modules that get adapters."""
    quantize_4bit: bool = False
    """Hold the frozen base in 4 bits (QLoRA, NF4 by bitsandbytes); exported weights are those 4 bits and the adapters,
    merged, in `dtype`."""


class LearnerConfig(StrictConfig):
    """How a model is trained."""

    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Type of the forward and backward pass; bfloat16 keeps float32 master weights."""
    ranks: int = Field(1, ge=1)
    """Processes."""
    sequence_parallel: int = Field(1, ge=1)
    """Ranks that share every sequence, for contexts too long for one; it divides `ranks` and (but for ring) the
    model's attention heads. `ranks / sequence_parallel` groups share out the batch."""
    sequence_parallel_attention: Literal["all_to_all", "ring"] = "all_to_all"
    """How those ranks attend: heads exchanged for tokens, on any device; or keys and values passed round by
    ring-flash-attn (GPUs, with packing), where the ranks are more than the heads can be divided by."""
    zero_stage: Literal[0, 1, 2, 3] = 1
    """What DeepSpeed shares out over the ranks: 1 optimizer states, 2 and gradients, 3 and weights."""
    micro_batch_tokens: int = Field(8192, ge=16)
    """Tokens of one forward and backward on one rank (with `sequence_parallel`: on its ranks together)."""
    packing: bool = True
    """Several sequences in one row, attention kept apart, instead of padding."""
    attention: Literal["auto", "eager", "sdpa", "flash_attention_2"] = "auto"
    """Attention implementation; auto chooses by device and length."""
    residual_float32: bool = False
    """Keep the residual stream in float32 around bfloat16 layers: exacter log-probs, for more memory."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, more time."""
    compile_layers: bool = False
    """Compile each decoder layer (costs start-up time)."""
    logits_chunk: int = Field(1024, ge=1)
    """Response tokens whose logits exist at once."""
    optimizer: OptimizerConfig = OptimizerConfig()
    lora: LoRAConfig | None = None
    aux_loss_coef: float = Field(0.0, ge=0)
    """Mixtures of experts: weight of the load-balancing loss, added to whatever is trained."""
    ema_decay: float | None = Field(None, gt=0, lt=1)
    """Keep an exponential moving average of the trained weights (float32, CPU memory); `none` for none."""
    ema_as_model: bool = False
    """Save the average as the model; otherwise beside it, in the folder `ema`."""
    adam_offload: bool = False
    """Keep optimizer states in CPU memory, and take the optimizer's step there (ZeRO 1-3)."""
    overlap_comm: bool = True
    """Overlap gradient communication with the backward pass (ZeRO 1-3)."""
    threads: int = Field(1, ge=1)
    """CPU threads of each rank."""
    trust_remote_code: bool = False
    """Run Python code that comes with a model."""

    @model_validator(mode="after")
    def _consistent(self) -> LearnerConfig:
        if self.adam_offload and self.zero_stage == 0:
            raise ValueError("adam_offload moves ZeRO's optimizer states: set zero_stage to 1, 2 or 3")
        if self.lora is not None and self.lora.quantize_4bit and self.zero_stage == 3:
            raise ValueError("ZeRO-3 cannot part 4-bit weights: set zero_stage to 0, 1 or 2, or quantize_4bit to false")
        if self.ranks % self.sequence_parallel:
            raise ValueError(f"sequence_parallel = {self.sequence_parallel} does not divide ranks = {self.ranks}")
        if self.sequence_parallel_attention == "ring" and not self.packing:
            raise ValueError("ring attention is over packed rows: set packing = true")
        if self.ema_as_model and self.ema_decay is None:
            raise ValueError("ema_as_model saves an average: set ema_decay too")
        return self
