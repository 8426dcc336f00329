"""How much memory a process will take, as far as it can be known before it starts. Torch-free.

Sizes are estimates that refuse the hopeless (a 7B model trained on a laptop), not promises. The fixed parts
were measured on the small model: a torch process 0.5 GiB, vLLM's engine 2 GiB, DeepSpeed 0.7 GiB.
"""

from __future__ import annotations

import json
import math
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlctl.launch.prepare import ARITHMETIC, UNTRAINED

MIB = 2**20
TORCH_MB = 500
DEEPSPEED_MB = 700
VLLM_MB = 2000
SMALL_MB = 150
RAY_MB = 1200
#: SmolLM2 comes as a package where the hub cannot be reached; its size is in its name.
_SIZE_IN_NAME = re.compile(r"(?<![\d.])(\d+(?:\.\d+)?)\s*([BM])(?![A-Za-z])", re.IGNORECASE)


@dataclass(frozen=True)
class ModelSize:
    """What is known of a model."""

    parameters: int
    hidden: int = 0
    layers: int = 0
    vocabulary: int = 0

    @property
    def billions(self) -> str:
        return f"{self.parameters / 1e9:.2f} B" if self.parameters >= 1e8 else f"{self.parameters / 1e6:.1f} M"


ARITHMETIC_SIZE = ModelSize(540_000, hidden=128, layers=3, vocabulary=320)


def model_size(model: str) -> ModelSize | None:
    """Size of a model in a folder, from its weight files' headers; of a name such as `Qwen2.5-7B`, from the name."""
    if model in (ARITHMETIC, UNTRAINED):
        return ARITHMETIC_SIZE
    folder = Path(model).expanduser()
    if folder.is_dir():
        parameters = sum(_parameters(path) for path in folder.glob("*.safetensors"))
        config = _config(folder)
        if not parameters:
            return None
        return ModelSize(
            parameters,
            int(config.get("hidden_size", 0)),
            int(config.get("num_hidden_layers", 0)),
            int(config.get("vocab_size", 0)),
        )
    found = _SIZE_IN_NAME.search(model.rsplit("/", 1)[-1])
    if found is None:
        return None
    return ModelSize(int(float(found[1]) * (10**9 if found[2].upper() == "B" else 10**6)))


def max_positions(model: str) -> int | None:
    """Context length of a model in a folder, tokens."""
    folder = Path(model).expanduser()
    positions = _config(folder).get("max_position_embeddings") if folder.is_dir() else None
    return int(positions) if positions else None


def _config(folder: Path) -> dict[str, Any]:
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    text: dict[str, Any] = config.get("text_config", config)
    return text


def _parameters(path: Path) -> int:
    """Elements of all tensors in a safetensors file, from its header."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    return sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")


def width(dtype: str) -> int:
    """Bytes of one weight."""
    return 4 if dtype == "float32" else 2


def training_mb(
    size: ModelSize | None,
    *,
    dtype: str,
    ranks: int,
    zero_stage: int,
    lora: bool,
    quantized: bool,
    micro_batch_tokens: int,
    logits_chunk: int,
    checkpointing: bool,
) -> int:
    """MiB of one training rank without the process itself: weights, gradients, Adam's states, activations.

    ZeRO shares optimizer states over the ranks from stage 1 on, gradients from 2, weights from 3.
    """
    if size is None:
        return 0
    weights = width(dtype) * (0.25 if quantized else 1.0)
    if lora:
        gradients = states = 0.2
    else:
        gradients = float(width(dtype))
        states = 8.0 if dtype == "float32" else 12.0
    weights /= ranks if zero_stage == 3 else 1
    gradients /= ranks if zero_stage >= 2 else 1
    states /= ranks if zero_stage >= 1 else 1
    held = size.parameters * (weights + gradients + states)
    per_layer = 2 if checkpointing else 16
    activations = micro_batch_tokens * size.hidden * size.layers * per_layer * width(dtype)
    logits = 3 * min(logits_chunk, micro_batch_tokens) * size.vocabulary * 4
    return int((held + activations + logits) / MIB)


def weights_mb(size: ModelSize | None, dtype: str) -> int:
    """MiB of a model that only runs forward."""
    return 0 if size is None else int(size.parameters * width(dtype) / MIB)


def available_mb() -> int:
    """Memory that this machine, or the control group we run in, has left, MiB."""
    import psutil

    free = int(psutil.virtual_memory().available)
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            free = min(free, int(Path(limit).read_text()) - int(Path(used).read_text()))
        except (OSError, ValueError):
            continue
    return free // MIB
