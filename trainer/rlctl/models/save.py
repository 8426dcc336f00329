"""Models to Hugging Face folders, which plain transformers, vLLM and peft load."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import GenerationConfig, PretrainedConfig, PreTrainedTokenizerBase

#: Bytes of one weight file.
SHARD_BYTES = 4 << 30


def save_model(
    folder: Path,
    config: PretrainedConfig,
    weights: Iterable[tuple[str, Tensor]],
    tokenizer: PreTrainedTokenizerBase | None,
    *,
    generation_config: GenerationConfig | None = None,
    architecture: str | None = None,
) -> None:
    """Writes configuration, tokenizer and `weights` (name, tensor; tied ones once) in Hugging Face format.

    The weights are consumed one by one, so that a model larger than memory can pass through; `architecture`
    replaces the class named in the configuration.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = _write_shards(folder, weights)
    tree = config.to_diff_dict()
    for ours in ("rlctl_kernel", "use_cache", "_attn_implementation_autoset"):
        tree.pop(ours, None)
    tree["model_type"] = config.model_type
    tree["architectures"] = [architecture] if architecture else config.architectures
    if architecture and architecture.endswith("ForSequenceClassification"):
        tree["id2label"], tree["label2id"] = {"0": "LABEL_0"}, {"LABEL_0": 0}
    (folder / "config.json").write_text(json.dumps(tree, indent=2, sort_keys=True, default=str) + "\n")
    if generation_config is not None:
        generation_config.save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    if len(files) > 1:
        _name_shards(folder, files)


def _write_shards(folder: Path, weights: Iterable[tuple[str, Tensor]]) -> list[tuple[str, dict[str, int]]]:
    files: list[tuple[str, dict[str, int]]] = []
    shard: dict[str, Tensor] = {}
    size = 0

    def flush() -> None:
        nonlocal shard, size
        name = f"model-{len(files) + 1:05d}.safetensors" if files or size >= SHARD_BYTES else "model.safetensors"
        save_file(shard, folder / name, metadata={"format": "pt"})
        files.append((name, {key: value.numel() * value.element_size() for key, value in shard.items()}))
        shard, size = {}, 0

    for name, tensor in weights:
        shard[name] = tensor.detach().to("cpu", copy=True).contiguous()
        size += tensor.numel() * tensor.element_size()
        if size >= SHARD_BYTES:
            flush()
    if shard:
        flush()
    return files


def _name_shards(folder: Path, files: list[tuple[str, dict[str, int]]]) -> None:
    names = {key: file for file, sizes in files for key in sizes}
    total = sum(size for _, sizes in files for size in sizes.values())
    index: dict[str, Any] = {"metadata": {"total_size": total}, "weight_map": names}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def dtype_name(dtype: torch.dtype) -> str:
    """`bfloat16` for `torch.bfloat16`."""
    return str(dtype).removeprefix("torch.")
