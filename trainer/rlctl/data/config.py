"""Settings of data sets: prompts, and prompts with responses."""

from __future__ import annotations

import re
from typing import Any

from pydantic import Field, field_validator, model_validator

from rlctl.core.config import StrictConfig


class TaskConfig(StrictConfig):
    """A reasoning-gym task as a data set."""

    name: str
    """Name of the task, for example `chain_sum`."""
    size: int = Field(1000, ge=1)
    """Questions generated, before the filters `include` and `unique`."""
    seed: int = 0
    """Seed of the generator."""
    parameters: dict[str, Any] = Field({})
    """Parameters of the task, as reasoning-gym names them."""


class DataConfig(StrictConfig):
    """A data set by name or path, or a reasoning-gym task.

    The rows pass `include`, `unique`, the choice of `split`, and the limits of length, in this order, and
    every filter counts what it took away. `splits` cuts a data set that has no parts of its own: each row's
    key is hashed to a number in [0, 1), and the shares divide that range in their order. A key therefore lies
    in one part for ever, whatever the size, order or seed of the data, and rows that share a key are never
    on two sides. With `split_key = '\\d+'` the key is the sorted numbers of a prompt, so that `b + a` in
    training gives no held-out `a + b` away.
    """

    path: str = ""
    """Hub name, or a local json, jsonl, csv or parquet file, or a folder (of such files, or of `save_to_disk`)."""
    name: str | None = None
    """Configuration of a hub data set."""
    split: str = "train"
    """Split of the data set (a folder's files are named by it), or with `splits` one of these."""
    splits: dict[str, float] = Field({})
    """Parts cut from the rows with their shares, for example `{ train = 0.9, test = 0.1 }`; empty: the data
    set's own splits. They are cut from a task, or from the data set's split `train`."""
    split_key: str = ""
    """Regular expression whose matches in a prompt, sorted, are the row's key for `splits`; empty: the prompt."""
    task: TaskConfig | None = None
    """A reasoning-gym task instead of `path`."""
    input_key: str = "prompt"
    """Column with the prompt: text, or a list of chat messages (`role`, `content`)."""
    label_key: str = "label"
    """Column with the right answer; empty where there is none."""
    include: str = ""
    """Regular expression that a prompt must contain; empty takes all."""
    unique: bool = False
    """Keep the first of the rows that have the same prompt."""
    input_template: str | None = None
    """Text with one `{}` where the prompt goes."""
    apply_chat_template: bool = False
    """Put the prompt through the tokenizer's chat template."""
    system_prompt: str | None = None
    """System message put before the prompt (with `apply_chat_template`)."""
    max_samples: int | None = Field(None, ge=1)
    """Rows used at most: the first that pass the filters."""
    max_prompt_len: int = Field(1024, ge=1)
    """Longest prompt, tokens."""
    too_long: str = Field("drop", pattern="^(drop|truncate_left)$")
    """`drop` filters longer prompts and counts them; `truncate_left` keeps their end."""

    @field_validator("include", "split_key")
    @classmethod
    def _pattern(cls, value: str) -> str:
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(f"{value!r} is no regular expression: {error}") from None
        return value

    @field_validator("input_template")
    @classmethod
    def _one_hole(cls, value: str | None) -> str | None:
        if value is not None and value.count("{}") != 1:
            raise ValueError("write one {} where the prompt goes")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> DataConfig:
        if self.path and self.task:
            raise ValueError("set path or task, not both")
        if self.splits:
            if any(share <= 0 for share in self.splits.values()) or sum(self.splits.values()) > 1 + 1e-9:
                raise ValueError("the shares of splits must be above 0 and sum to 1 at most")
            if self.split not in self.splits:
                raise ValueError(f"split {self.split!r} is none of splits: {', '.join(self.splits)}")
        elif self.task and self.split != "train":
            raise ValueError(f"a task has no split {self.split!r} of its own: set splits")
        if self.split_key and not self.splits:
            raise ValueError("split_key does nothing without splits")
        if self.system_prompt is not None and not self.apply_chat_template:
            raise ValueError("system_prompt needs apply_chat_template = true")
        return self


class PromptDataConfig(DataConfig):
    """Prompts to train or evaluate on."""

    shuffle: bool = True
    """New order every epoch, from `seed`."""
    seed: int = 0
    """Seed of the order."""


class SupervisedDataConfig(DataConfig):
    """Prompts with the responses to learn."""

    output_key: str = ""
    """Column with the response; empty: the label is the response."""
    max_response_len: int = Field(1024, ge=1)
    """Longest response with its EOS, tokens; longer ones are dropped and counted."""
