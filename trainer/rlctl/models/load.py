"""Models and tokenizers from a Hugging Face folder."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from rlctl.core.errors import ConfigError, NotFoundError
from rlctl.models import attention as packed
from rlctl.models.value_head import ValueModel
from rlctl.models.widen import widen_linears

Dtype = Literal["float32", "bfloat16"]
Attention = Literal["auto", "eager", "sdpa", "flash_attention_2"]
DTYPES: dict[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def load_tokenizer(path: Path, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """The tokenizer of a model folder; a missing pad token becomes the EOS token.

    Raises NotFoundError when there is no tokenizer in the folder.
    """
    tokenizer = _load(AutoTokenizer.from_pretrained, path, "tokenizer", trust_remote_code=trust_remote_code)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_causal_lm(
    path: Path, dtype: Dtype, attention: Attention = "auto", trust_remote_code: bool = False
) -> PreTrainedModel:
    """A causal language model, in eval mode on the CPU, ready for packed or right-padded rows.

    Raises NotFoundError (no model there) and ConfigError (a kind of model or of attention that does not work).
    """
    model = _load(AutoModelForCausalLM.from_pretrained, path, "model", **_options(dtype, attention, trust_remote_code))
    if getattr(model.config, "final_logit_softcapping", None):
        raise ConfigError(
            f"{path}: {model.config.model_type} caps its logits, which the chunked log-probs do not; "
            "choose a model without final_logit_softcapping",
            reason="UNSUPPORTED_MODEL",
        )
    return _ready(model, attention)


def load_value_model(
    path: Path, dtype: Dtype, attention: Attention = "auto", seed: int | None = None, trust_remote_code: bool = False
) -> ValueModel:
    """A value model: the folder's own head `score` where it has one; else a zero head, or with `seed` a random one."""
    options = _options(dtype, attention, trust_remote_code)
    if _has_score_head(path):
        whole = _load(AutoModelForSequenceClassification.from_pretrained, path, "value model", **options)
        if whole.score.out_features != 1:
            raise ConfigError(f"{path}: a value model has one output, this one {whole.score.out_features}")
        model = ValueModel(_ready(whole.base_model, attention))
        model.score.load_state_dict(whole.score.state_dict())
        return model.eval()
    model = ValueModel(_ready(_load(AutoModel.from_pretrained, path, "model", **options), attention))
    model.zero_head() if seed is None else model.random_head(seed)
    return model.eval()


def load_reward_model(path: Path, dtype: Dtype, trust_remote_code: bool = False) -> PreTrainedModel:
    """A reward model (`AutoModelForSequenceClassification` with one output) in eval mode."""
    options = {"dtype": DTYPES[dtype], "trust_remote_code": trust_remote_code}
    model = _load(AutoModelForSequenceClassification.from_pretrained, path, "reward model", **options)
    if model.config.num_labels != 1:
        raise ConfigError(f"{path}: a reward model has one output, this one {model.config.num_labels}")
    widen_linears(model)
    return model.eval()


def uses_flash_attention(attention: Attention) -> bool:
    """Whether transformers' own flash attention runs: asked for, or there and `auto`."""
    there = torch.cuda.is_available() and importlib.util.find_spec("flash_attn") is not None
    if attention == "flash_attention_2" and not there:
        raise ConfigError("flash_attention_2 needs a GPU and the package flash-attn; set attention = 'auto'")
    return there and attention in ("auto", "flash_attention_2")


def _options(dtype: Dtype, attention: Attention, trust_remote_code: bool) -> dict[str, Any]:
    name = "flash_attention_2" if uses_flash_attention(attention) else packed.NAME
    return {"dtype": DTYPES[dtype], "attn_implementation": name, "trust_remote_code": trust_remote_code}


def _ready(model: PreTrainedModel, attention: Attention) -> PreTrainedModel:
    model.config.rlctl_kernel = attention
    model.config.use_cache = False
    widen_linears(model)
    return model.eval()


def _has_score_head(path: Path) -> bool:
    config = json.loads((path / "config.json").read_text()) if (path / "config.json").is_file() else {}
    return any(name.endswith("ForSequenceClassification") for name in config.get("architectures") or [])


def _load(loader: Callable[..., Any], path: Path, what: str, **options: Any) -> Any:
    if not (path / "config.json").is_file():
        raise NotFoundError(f"there is no {what} in {path}: config.json is missing", reason="MODEL_NOT_FOUND")
    try:
        return loader(str(path), local_files_only=True, **options)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"cannot load the {what} in {path}: {error}", reason="MODEL_NOT_LOADED") from error
