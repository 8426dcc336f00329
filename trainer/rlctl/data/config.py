"""Settings of data sets: prompts, prompts with responses, preferences, judged responses, and steps of reasoning."""

from __future__ import annotations

import re
from collections.abc import Sequence
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
    corrupt: float | None = Field(None, ge=0, le=1)
    """Adds columns with wrong answers, made by changing a digit: `wrong`; `shown` and `shown_right`, of which this
    share is wrong; and of chains of sums `worked` and `worked_right`, one step a line. `none` adds nothing."""


def check_probabilities(given: Sequence[float | None]) -> None:
    """ValueError unless the shares of a mixture are set for none, or for all and sum to 1."""
    shares = [share for share in given if share is not None]
    if shares and len(shares) < len(given):
        raise ValueError(f"probability is set for {len(shares)} of {len(given)} data sets: set it for all, or for none")
    if shares and abs(sum(shares) - 1) > 1e-6:
        raise ValueError(f"the probabilities of the data sets sum to {sum(shares):g}: let them sum to 1")


class SourceConfig(StrictConfig):
    """Where rows come from, and which of them are taken.

    The rows pass `include`, `unique`, the choice of `split`, and the limits of length, in this order, and
    every filter counts what it took away. `splits` cuts a data set that has no parts of its own: each row's
    key is hashed to a number in [0, 1), and the shares divide that range in their order. A key therefore lies
    in one part for ever, whatever the size, order or seed of the data, and rows that share a key are never
    on two sides. With `split_key = '\\d+'` the key is the sorted numbers of a prompt, so that `b + a` in
    training gives no held-out `a + b` away.
    """

    path: str = ""
    """Hub name, or a local json, jsonl, csv or parquet file, or a folder (of such files, or of `save_to_disk`), or
    one kind of files in a folder (`json@./data` with train.jsonl and test.jsonl)."""
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
    include: str = ""
    """Regular expression that a prompt must contain; empty takes all."""
    unique: bool = False
    """Keep the first of the rows that have the same prompt."""
    max_samples: int | None = Field(None, ge=1)
    """Rows used at most: the first that pass the filters."""
    probability: float | None = Field(None, gt=0, le=1)
    """Share of this data set in a mixture of several: set for all of them, summing to 1, or for none (then they
    are put together, each row once an epoch)."""

    @field_validator("include", "split_key")
    @classmethod
    def _pattern(cls, value: str) -> str:
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(f"{value!r} is no regular expression: {error}") from None
        return value

    @model_validator(mode="after")
    def _one_source(self) -> SourceConfig:
        if self.path and self.task:
            raise ValueError("set path or task, not both (task=none clears the recipe's)")
        if self.splits:
            if any(share <= 0 for share in self.splits.values()) or sum(self.splits.values()) > 1 + 1e-9:
                raise ValueError("the shares of splits must be above 0 and sum to 1 at most")
            if self.split not in self.splits:
                raise ValueError(f"split {self.split!r} is none of splits: {', '.join(self.splits)}")
        elif self.task and self.split != "train":
            raise ValueError(f"a task has no split {self.split!r} of its own: set splits")
        if self.split_key and not self.splits:
            raise ValueError("split_key does nothing without splits")
        return self


class TextConfig(SourceConfig):
    """How a row's prompt becomes the text that the model sees, and how long it may be."""

    input_template: str | None = None
    """Text with one `{}` where the prompt goes."""
    apply_chat_template: bool = False
    """Put the prompt through the tokenizer's chat template."""
    chat_template: str | None = None
    """Jinja text of a chat template, or the path of a file with it, instead of the tokenizer's (with
    `apply_chat_template`)."""
    system_prompt: str | None = None
    """System message put before the prompt (with `apply_chat_template`)."""
    max_prompt_len: int = Field(1024, ge=1)
    """Longest prompt, tokens."""
    too_long: str = Field("drop", pattern="^(drop|truncate_left)$")
    """`drop` filters longer prompts and counts them; `truncate_left` keeps their end."""

    @field_validator("input_template")
    @classmethod
    def _one_hole(cls, value: str | None) -> str | None:
        if value is not None and value.count("{}") != 1:
            raise ValueError("write one {} where the prompt goes")
        return value

    @model_validator(mode="after")
    def _chat(self) -> TextConfig:
        for name in ("system_prompt", "chat_template"):
            if getattr(self, name) is not None and not self.apply_chat_template:
                raise ValueError(f"{name} needs apply_chat_template = true")
        return self


class DataConfig(TextConfig):
    """A data set of prompts by name or path, or a reasoning-gym task."""

    input_key: str = "prompt"
    """Column with the prompt: text, or a list of chat messages (`role`, `content`)."""
    label_key: str = "label"
    """Column with the right answer; empty where there is none."""

    @property
    def parts(self) -> list[DataConfig]:
        """The data sets this is made of."""
        return [self]


class PromptDataConfig(DataConfig):
    """Prompts to train or evaluate on."""

    shuffle: bool = True
    """New order every epoch, from `seed`."""
    seed: int = 0
    """Seed of the order."""
    mixture: list[DataConfig] = Field([])
    """Several data sets instead of `path` or `task`, mixed by their `probability` or put together. The limits of
    length are those that stand beside it."""

    @model_validator(mode="after")
    def _mixed(self) -> PromptDataConfig:
        beside = {"mixture", "shuffle", "seed", "max_prompt_len", "too_long"}
        if self.mixture and self.model_fields_set - beside:
            raise ValueError(f"{', '.join(sorted(self.model_fields_set - beside))}: set this in the entries of mixture")
        if self.probability is not None:
            raise ValueError("probability stands in the entries of mixture")
        check_probabilities([config.probability for config in self.mixture])
        return self

    @property
    def parts(self) -> list[DataConfig]:
        limits = {"max_prompt_len": self.max_prompt_len, "too_long": self.too_long}
        return [part.model_copy(update=limits) for part in self.mixture] or [self]


class ResponseConfig(TextConfig):
    """Limits of prompts with responses."""

    max_response_len: int = Field(1024, ge=1)
    """Longest response with its EOS, tokens; longer ones are dropped and counted."""
    max_len: int | None = Field(None, ge=2)
    """Longest prompt and response together, tokens; longer ones are dropped and counted."""


class SupervisedDataConfig(DataConfig, ResponseConfig):
    """Prompts with the responses to learn, chats, or plain text.

    A column `input_key` that holds a whole chat (with assistant turns, and no `output_key`) is learnt turn by
    turn: each assistant turn with the token that ends it, and nothing else. Its response, for the limits of
    length, is all that follows the first prompt.
    """

    output_key: str = ""
    """Column with the response (text, or chat messages); empty: the label is the response, or the assistant's
    turns of the chat."""
    pretrain: bool = False
    """Learn every token of the text in `input_key`, cut into pieces of `max_len` (or else `max_response_len`)
    tokens; no text is lost at the cuts."""

    @model_validator(mode="after")
    def _plain_text(self) -> SupervisedDataConfig:
        if self.pretrain and (self.output_key or self.apply_chat_template):
            raise ValueError("pretrain learns plain text: leave out output_key and apply_chat_template")
        return self


class PreferenceDataConfig(ResponseConfig):
    """Pairs of a better and a worse response to one prompt."""

    prompt_key: str = "prompt"
    """Column with the prompt (text or chat messages); empty: both responses are whole chats or texts that begin
    with it."""
    chosen_key: str = "chosen"
    """Column with the better response: text, or chat messages."""
    rejected_key: str = "rejected"
    """Column with the worse response: text, or chat messages."""
    margin_key: str = ""
    """Column with how much better, a number; empty: 0."""


class KTODataConfig(ResponseConfig):
    """Single responses, each judged desirable or not."""

    input_key: str = "prompt"
    """Column with the prompt: text, chat messages, or without `output_key` a chat that ends with the response."""
    output_key: str = "completion"
    """Column with the response: text, or chat messages; empty: the last turn of the chat in `input_key`."""
    label_key: str = "label"
    """Column with the judgement: true or false, 1 or 0."""


class ProcessDataConfig(SourceConfig):
    """Reasoning whose steps are judged one by one, for process reward models."""

    input_key: str = "input"
    """Column with question and steps: text with `placeholder` at each step's end."""
    label_key: str = "label"
    """Column with the judgements: a list with one entry a step (`positive`, `negative`, true, false, or the
    probability that the step is right), or the input's text with a reward token in each placeholder's place."""
    placeholder: str = "ки"
    """Text at the end of each step, one token; the judgement is predicted there."""
    positive: str = "+"
    """Reward token of a right step, one token."""
    negative: str = "-"
    """Reward token of a wrong step, one token."""
    max_len: int = Field(2048, ge=1)
    """Longest input, tokens."""
    too_long: str = Field("truncate", pattern="^(truncate|drop)$")
    """`truncate` cuts longer inputs at their end, together with the labels; `drop` filters them."""

    @model_validator(mode="after")
    def _tokens(self) -> ProcessDataConfig:
        if len({self.placeholder, self.positive, self.negative}) < 3:
            raise ValueError("placeholder, positive and negative must be three different tokens")
        return self
