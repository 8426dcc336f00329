"""LoRA adapters as folders that peft loads, and their merge into a base."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from rlctl.core.errors import ConfigError, NotFoundError
from rlctl.models.source import resolve

_PREFIX = "base_model.model."
#: Mean and deviation of rewards, and the pad token, which may be one more than the base knows.
_REWARD_SETTINGS = ("mean", "std", "pad_token_id")


def save_adapter(folder: Path, config: Any, base: str, tensors: Iterable[tuple[str, Tensor]], head: bool) -> None:
    """Writes `tensors` (their names in the base's class, `...lora_A.default.weight`) for peft.

    `config` is peft's LoraConfig; with `head` they are those of a classifier, `score.weight` among them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config.base_model_name_or_path = base
    config.task_type = "SEQ_CLS" if head else "CAUSAL_LM"
    config.modules_to_save = ["score"] if head else None
    config.inference_mode = True
    config.save_pretrained(folder)
    named = {_PREFIX + name.replace(".default.", "."): tensor for name, tensor in tensors}
    save_file(
        {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in named.items()},
        folder / "adapter_model.safetensors",
        metadata={"format": "pt"},
    )


def merge_adapter(adapter: Path, output: Path, base: str | None = None) -> str:
    """Writes the base with the adapter merged in, a reward model's head `score` included; returns its class.

    `base` overrides the model that the adapter names. The result has the base's type of weights. Raises
    NotFoundError, ConfigError.
    """
    if not (adapter / "adapter_config.json").is_file():
        raise NotFoundError(f"{adapter} holds no adapter: adapter_config.json is missing", reason="ADAPTER_NOT_FOUND")
    if output.exists():
        raise ConfigError(f"{output} exists: choose a folder that does not")
    from peft import PeftConfig, PeftModel

    config = PeftConfig.from_pretrained(str(adapter))
    name = base or config.base_model_name_or_path
    if not name:
        raise ConfigError(f"{adapter} names no base model: give --base")
    folder = resolve(name)
    loader: Any = AutoModelForCausalLM
    options: dict[str, Any] = {"dtype": "auto", "local_files_only": True}
    if config.task_type == "SEQ_CLS":
        loader, options = AutoModelForSequenceClassification, options | {"num_labels": 1}
    try:
        plain = loader.from_pretrained(str(folder), **options)
        if config.task_type == "SEQ_CLS":
            for key, value in _reward_settings(adapter).items():
                setattr(plain.config, key, value)
            pad = plain.config.pad_token_id or 0
            if pad >= plain.get_input_embeddings().num_embeddings:
                plain.resize_token_embeddings(pad + 1, mean_resizing=False)
        with torch.no_grad():
            merged = PeftModel.from_pretrained(plain, str(adapter)).merge_and_unload(safe_merge=True)
    except (ValueError, RuntimeError, KeyError, OSError) as error:
        raise ConfigError(f"{adapter} does not fit {folder}: {error}", reason="ADAPTER_MISFIT") from error
    merged.save_pretrained(output)
    for source in (adapter, adapter.parent, folder):
        if (source / "tokenizer_config.json").is_file():
            AutoTokenizer.from_pretrained(str(source), local_files_only=True).save_pretrained(output)
            break
    return type(merged).__name__


def _reward_settings(adapter: Path) -> dict[str, Any]:
    """What training a reward model added to the configuration of the model that the adapter was saved with."""
    beside = adapter.parent / "config.json"
    tree = json.loads(beside.read_text()) if beside.is_file() else {}
    return {name: tree[name] for name in _REWARD_SETTINGS if tree.get(name) is not None}
