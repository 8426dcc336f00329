"""Every kind of data set by the class of its settings."""

from __future__ import annotations

from typing import Any

from rlctl.data.config import (
    KTODataConfig,
    PreferenceDataConfig,
    ProcessDataConfig,
    PromptDataConfig,
    SourceConfig,
    SupervisedDataConfig,
)
from rlctl.data.dataset import Dataset
from rlctl.data.kto import load_kto
from rlctl.data.preference import load_preferences
from rlctl.data.process import load_process
from rlctl.data.prompts import load_prompts
from rlctl.data.supervised import load_supervised

CONFIGS: dict[str, type[SourceConfig]] = {
    "prompts": PromptDataConfig,
    "supervised": SupervisedDataConfig,
    "preference": PreferenceDataConfig,
    "kto": KTODataConfig,
    "process": ProcessDataConfig,
}


def load_data(config: SourceConfig, tokenizer: Any) -> Dataset[Any]:
    """Loads what the settings say. Raises ConfigError, NotFoundError, UnavailableError."""
    if isinstance(config, SupervisedDataConfig):
        return load_supervised(config, tokenizer)
    if isinstance(config, PreferenceDataConfig):
        return load_preferences(config, tokenizer)
    if isinstance(config, KTODataConfig):
        return load_kto(config, tokenizer)
    if isinstance(config, ProcessDataConfig):
        return load_process(config, tokenizer)
    assert isinstance(config, PromptDataConfig)
    return load_prompts(config, tokenizer)
