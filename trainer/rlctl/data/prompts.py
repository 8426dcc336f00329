"""Prompt data: from rows to token ids.

rows ─ include ─ unique ─ split ─ text (template, chat) ─ token ids ─ length ─ max_samples ─► PromptDataset
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from rlctl.data.config import DataConfig
from rlctl.data.cursor import MixedCursor, PromptCursor
from rlctl.data.dataset import Dataset
from rlctl.data.filters import cap, fit, select_rows
from rlctl.data.mix import mix
from rlctl.data.rows import Row
from rlctl.data.template import encode, prompt_text, tokenizer_for


@dataclass(frozen=True)
class Prompt:
    """A prompt as the policy, the reward and the ledger need it."""

    prompt_ids: list[int]
    text: str
    """What `prompt_ids` say (before any truncation), without the BOS."""
    label: str
    """The right answer, or empty."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """`{"task": name, "entry": {question, answer, metadata}}` for a reasoning-gym task, else the row's other
    columns; plain JSON values, where others (dates, bytes) are text."""
    value: Any = None
    """The prompt as the row has it, before any template: text or chat messages."""

    @property
    def metadata_json(self) -> str:
        """`metadata` as compact JSON."""
        return json.dumps(self.metadata, ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True)
class PromptDataset(Dataset[Prompt]):
    """Prompts that passed the filters, in the order of the data.

    `counts`: `rows` read, `kept`, and what each filter took: `excluded`, `repeated`, `other_split`, `empty`,
    `too_long`, `beyond_max_samples`, `held_out`; `truncated` prompts are kept.
    """

    sizes: list[int] = field(default_factory=list)
    """Prompts of each data set of a mixture."""
    probabilities: list[float] | None = None
    """Share of each."""

    def cursor(self, shuffle: bool, seed: int) -> PromptCursor:
        """Where training stands in the prompts."""
        if self.probabilities is None:
            return PromptCursor(len(self), shuffle, seed)
        return MixedCursor(self.sizes, self.probabilities, shuffle, seed)


def load_prompts(config: DataConfig, tokenizer: Any, held_out: DataConfig | None = None) -> PromptDataset:
    """Reads, filters and tokenises prompt data; prompts that `held_out` has too are taken away and counted.

    Raises ConfigError, NotFoundError or UnavailableError.
    """
    if held_out is None:
        mixed = mix(config.parts, lambda part: _load(part, tokenizer))
    else:
        mixed = mix(
            config.parts, lambda part: _load(part, tokenizer), load_prompts(held_out, tokenizer), held_out.parts
        )
    counts = {name: sum(each.get(name, 0) for each in mixed.counts) for name in mixed.counts[0]}
    return PromptDataset(mixed.items, counts, mixed.sizes, mixed.probabilities)


def _load(config: DataConfig, tokenizer: Any) -> Dataset[Prompt]:
    tokenizer = tokenizer_for(config, tokenizer)
    counts: dict[str, int] = {}
    rows = select_rows(config, counts, lambda row: row.column(input_key(config, row), "input_key"))
    values = [row.values[input_key(config, row)] for row in rows]
    texts = [prompt_text(config, value, row.where, tokenizer) for row, value in zip(rows, values, strict=True)]
    all_ids = encode(texts, tokenizer, chat=config.apply_chat_template)
    prompts: list[Prompt] = []
    for row, value, text, ids in zip(rows, values, texts, all_ids, strict=True):
        fitted = fit(ids, config, tokenizer, counts)
        if fitted is not None:
            prompts.append(Prompt(fitted, text, label_of(config, row), _metadata(config, row), value))
    return Dataset(cap(prompts, config, counts, "prompts"), counts)


def input_key(config: DataConfig, row: Row) -> str:
    """The column with the prompt: a task's is `question`."""
    return "question" if row.task else config.input_key


def label_of(config: DataConfig, row: Row) -> str:
    """The row's label as text: `answer` of a task, `label_key` of other data, empty without one."""
    if row.task:
        return as_text(row.values.get("answer"))
    if not config.label_key:
        return ""
    return as_text(row.column(config.label_key, "label_key (or to '' when there are no answers)"))


def as_text(value: Any) -> str:
    """Text as it is, nothing as empty text, anything else as JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _metadata(config: DataConfig, row: Row) -> dict[str, Any]:
    if row.task:
        return {"task": row.task, "entry": _plain(row.values)}
    return _plain(
        {name: value for name, value in row.values.items() if name not in (config.input_key, config.label_key)}
    )


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    plain = json.loads(json.dumps(values, default=str))
    assert isinstance(plain, dict)
    return plain
