"""Settings of prompt data."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from rlctl.core.config import StrictConfig


class TaskConfig(StrictConfig):
    """A reasoning-gym task as a data set."""

    name: str
    """Name of the task, for example `chain_sum`."""
    size: int = Field(1000, ge=1)
    """Questions generated."""
    seed: int = 0
    """Seed of the generator."""
    parameters: dict[str, Any] = {}
    """Parameters of the task, as reasoning-gym names them."""


class PromptDataConfig(StrictConfig):
    """Prompts to train or evaluate on: a data set by name or path, or a reasoning-gym task."""

    path: str = ""
    """Hub name, or a local json, jsonl, csv or parquet file, or a folder."""
    name: str | None = None
    """Configuration of a hub data set."""
    split: str = "train"
    """Split of the data set."""
    task: TaskConfig | None = None
    input_key: str = "prompt"
    """Column with the prompt: text, or a list of chat messages."""
    label_key: str = "label"
    """Column with the right answer; empty where there is none."""
    input_template: str | None = None
    """Text with one `{}` where the prompt goes."""
    apply_chat_template: bool = False
    """Put the prompt through the tokenizer's chat template."""
    system_prompt: str | None = None
    """System message put before the prompt (with `apply_chat_template`)."""
    max_samples: int | None = Field(None, ge=1)
    """Rows used at most."""
    max_prompt_len: int = Field(1024, ge=1)
    """Longest prompt, tokens."""
    too_long: str = Field("drop", pattern="^(drop|truncate_left)$")
    """`drop` filters longer prompts and counts them; `truncate_left` keeps their end."""
    shuffle: bool = True
    """New order every epoch, from `seed`."""
    seed: int = 0
    """Seed of the order."""
