"""Prompt data: from rows to token ids.

rows ─ include ─ unique ─ split ─ text (template, chat) ─ token ids ─ length ─ max_samples ─► PromptDataset
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rlctl.core.errors import ConfigError
from rlctl.data.config import DataConfig, PromptDataConfig
from rlctl.data.rows import Row, load_rows
from rlctl.data.split import part_of, row_key
from rlctl.data.template import check_tokenizer, encode, prompt_text

T = TypeVar("T")


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

    @property
    def metadata_json(self) -> str:
        """`metadata` as compact JSON."""
        return json.dumps(self.metadata, ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True)
class PromptDataset:
    """Prompts that passed the filters, in the order of the data.

    `counts`: `rows` read, `kept`, and what each filter took: `excluded`, `repeated`, `other_split`, `empty`,
    `too_long`, `beyond_max_samples`; `truncated` prompts are kept.
    """

    prompts: list[Prompt]
    counts: dict[str, int]

    def __len__(self) -> int:
        return len(self.prompts)

    def __getitem__(self, index: int) -> Prompt:
        return self.prompts[index]

    def __iter__(self) -> Iterator[Prompt]:
        return iter(self.prompts)


def load_prompts(config: PromptDataConfig, tokenizer: Any) -> PromptDataset:
    """Reads, filters and tokenises prompt data. Raises ConfigError, NotFoundError or UnavailableError."""
    check_tokenizer(config, tokenizer)
    counts: dict[str, int] = {}
    rows = select_rows(config, counts)
    texts = [prompt_text(config, row.values[input_key(config, row)], row.where, tokenizer) for row in rows]
    all_ids = encode(texts, tokenizer, chat=config.apply_chat_template)
    prompts: list[Prompt] = []
    for row, text, ids in zip(rows, texts, all_ids, strict=True):
        fitted = fit(ids, config, tokenizer, counts)
        if fitted is not None:
            prompts.append(Prompt(fitted, text, label_of(config, row), _metadata(config, row)))
    prompts = cap(prompts, config, counts)
    return PromptDataset(prompts, counts)


def input_key(config: DataConfig, row: Row) -> str:
    """The column with the prompt: a task's is `question`."""
    return "question" if row.task else config.input_key


def select_rows(config: DataConfig, counts: dict[str, int]) -> list[Row]:
    """The rows that pass `include`, `unique`, `splits` and have a prompt; counts what was taken away."""
    rows = load_rows(config)
    counts.update(rows=len(rows), excluded=0, repeated=0, other_split=0, empty=0, too_long=0, truncated=0)
    seen: set[str] = set()
    kept: list[Row] = []
    for row in rows:
        value = row.column(input_key(config, row), "input_key")
        if not value or (isinstance(value, str) and not value.strip()):
            counts["empty"] += 1
            continue
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if config.include and not re.search(config.include, text):
            counts["excluded"] += 1
        elif config.unique and text in seen:
            counts["repeated"] += 1
        elif config.splits and part_of(row_key(text, config.split_key), config.splits) != config.split:
            counts["other_split"] += 1
            seen.add(text)
        else:
            seen.add(text)
            kept.append(row)
    return kept


def fit(ids: list[int], config: DataConfig, tokenizer: Any, counts: dict[str, int]) -> list[int] | None:
    """The ids within `max_prompt_len`, cut from the left (a BOS stays) or None when they are dropped."""
    limit = config.max_prompt_len
    if len(ids) <= limit:
        return ids
    if config.too_long == "drop":
        counts["too_long"] += 1
        return None
    counts["truncated"] += 1
    if limit > 1 and tokenizer.bos_token_id is not None and ids[0] == tokenizer.bos_token_id:
        return [ids[0], *ids[len(ids) - limit + 1 :]]
    return ids[len(ids) - limit :]


def cap(items: list[T], config: DataConfig, counts: dict[str, int]) -> list[T]:
    """The first `max_samples`; ConfigError when nothing is left."""
    limit = config.max_samples or len(items)
    counts["beyond_max_samples"] = max(len(items) - limit, 0)
    items = items[:limit]
    counts["kept"] = len(items)
    if not items:
        taken = ", ".join(f"{name} {count}" for name, count in counts.items() if count and name != "rows")
        raise ConfigError(
            f"no prompts are left of the {counts['rows']} rows of {config.task.name if config.task else config.path}"
            + (f" ({taken}): loosen these filters" if taken else ": the data set is empty")
        )
    return items


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
