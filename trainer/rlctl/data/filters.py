"""Which rows are taken, and how long a prompt may be; every filter counts what it took away."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, TypeVar

from rlctl.core.errors import ConfigError
from rlctl.data.config import ResponseConfig, SourceConfig, TextConfig
from rlctl.data.rows import Row, load_rows
from rlctl.data.split import part_of, row_key

T = TypeVar("T")


def select_rows(config: SourceConfig, counts: dict[str, int], prompt_of: Callable[[Row], Any]) -> list[Row]:
    """The rows that pass `include`, `unique`, `splits` and have a prompt; counts what was taken away."""
    rows = load_rows(config)
    counts.update(rows=len(rows), excluded=0, repeated=0, other_split=0, empty=0, too_long=0, truncated=0)
    seen: set[str] = set()
    kept: list[Row] = []
    for row in rows:
        value = prompt_of(row)
        if not value or (isinstance(value, str) and not value.strip()):
            counts["empty"] += 1
            continue
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
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


def fit(ids: list[int], config: TextConfig, tokenizer: Any, counts: dict[str, int]) -> list[int] | None:
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


def fit_responses(
    prompt: list[int], responses: list[list[int]], config: ResponseConfig, tokenizer: Any, counts: dict[str, int]
) -> list[int] | None:
    """The prompt within its limit, or None where it or one of its responses is too long and the row is dropped."""
    longest = max(len(response) for response in responses)
    if longest > config.max_response_len:
        counts["response_too_long"] += 1
        return None
    fitted = fit(prompt, config, tokenizer, counts)
    if fitted is not None and config.max_len is not None and len(fitted) + longest > config.max_len:
        counts["over_max_len"] += 1
        return None
    return fitted


def cap(items: list[T], config: SourceConfig, counts: dict[str, int], what: str) -> list[T]:
    """The first `max_samples`; ConfigError when nothing is left."""
    limit = config.max_samples or len(items)
    counts["beyond_max_samples"] = max(len(items) - limit, 0)
    items = items[:limit]
    counts["kept"] = len(items)
    if not items:
        raise nothing_left(config, counts, what)
    return items


def nothing_left(config: SourceConfig, counts: dict[str, int], what: str) -> ConfigError:
    """The error for a data set whose filters took everything."""
    taken = ", ".join(f"{name} {count}" for name, count in counts.items() if count and name != "rows")
    return ConfigError(
        f"no {what} are left of the {counts['rows']} rows of {config.task.name if config.task else config.path}"
        + (f" ({taken}): loosen these filters" if taken else ": the data set is empty")
    )
