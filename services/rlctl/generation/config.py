"""Settings of the generation service."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlctl.core.config import StrictConfig
from rlctl.rpc.config import ServerConfig
from rlctl.weights.config import WeightsConfig


class EngineConfig(StrictConfig):
    """The engine behind a generation replica."""

    engine: Literal["auto", "vllm", "transformers"] = "auto"
    """auto: vLLM where it is installed, else transformers' own generate."""
    model: str = ""
    """Folder or hub name; empty: the policy of the run."""
    revision: str | None = None
    """Revision of a hub model."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Type of weights and computation."""
    head_dtype: Literal["float32", "model"] = "float32"
    """Type of the logits: in bfloat16 their rounding alone moves log-probs by 0.03 on average, away from the trainer's;
    `model`: that of `dtype`, a little faster."""
    max_model_len: int | None = Field(None, ge=8)
    """Prompt and response together, tokens; default: the model's own."""
    kv_cache_mb: int = Field(1024, ge=16)
    """Memory of the KV cache on a CPU, MiB."""
    gpu_memory_utilization: float = Field(0.85, gt=0, le=1)
    """Share of a GPU's memory that the engine may take."""
    tensor_parallel: int = Field(1, ge=1)
    """GPUs a replica is split over."""
    max_num_seqs: int = Field(256, ge=1)
    """Responses generated at once."""
    enforce_eager: bool = True
    """Skip compilation: starts sooner, runs slower."""
    enable_prefix_caching: bool = True
    """Share the work of common prompt beginnings."""
    seed: int = 0
    """Seed of the engine; a request's own seed wins."""
    threads: int = Field(1, ge=1)
    """CPU threads of the engine."""
    trust_remote_code: bool = False
    """Run Python code that comes with a model."""


class GenerationConfig(EngineConfig):
    """A generation replica as a process."""

    server: ServerConfig = ServerConfig()
    weights: WeightsConfig = WeightsConfig()
    request_timeout_s: float = Field(600.0, gt=0)
    """Longest a request may take, whatever deadline the caller set, seconds."""
    catch_up: bool = False
    """Not SERVING until the trainer has sent the current weights (set by the launcher)."""
    health_interval_s: float = Field(30.0, gt=0)
    """A replica that finished nothing for so long generates a token to prove that it lives, seconds."""
    health_timeout_s: float = Field(120.0, gt=0)
    """A replica that takes longer for that token ends, to be started again, seconds."""
