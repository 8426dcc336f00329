"""Pairs of a better and a worse response, as token ids."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from rlctl.core.errors import ConfigError
from rlctl.data.config import PreferenceDataConfig
from rlctl.data.dataset import Dataset
from rlctl.data.filters import cap, fit_responses, select_rows
from rlctl.data.responses import ResponseEncoder, is_blank, response_value
from rlctl.data.rows import Row
from rlctl.data.template import check_messages, kind
from rlctl.data.turns import Chat, shared_prefix


@dataclass(frozen=True)
class Pair:
    """A prompt and two responses; each ends with the token that ends a turn."""

    prompt_ids: list[int]
    chosen_ids: list[int]
    rejected_ids: list[int]
    margin: float
    """How much better the chosen one is; 0 where the data does not say."""


class PreferenceDataset(Dataset[Pair]):
    """Pairs that passed the filters; `counts` as of `SupervisedDataset`, with `same` (both responses are equal)
    and `not_one_turn` (chats that part before their last turn)."""


def load_preferences(config: PreferenceDataConfig, tokenizer: Any) -> PreferenceDataset:
    """Reads, filters and tokenises pairs. Raises ConfigError, NotFoundError, UnavailableError."""
    if config.task is not None and config.task.corrupt is None:
        raise ConfigError("a reasoning-gym task has no preferences: set path, or task.corrupt to make some")
    encoder = ResponseEncoder(config, tokenizer)
    counts: dict[str, int] = {}
    key = config.prompt_key or config.chosen_key
    rows = select_rows(config, counts, lambda row: row.column(key, "prompt_key" if config.prompt_key else "chosen_key"))
    counts.update(empty_response=0, same=0, not_one_turn=0, response_too_long=0, over_max_len=0)
    margins: list[float] = []
    chats: list[Chat] = []
    for row in rows:
        pair = _pair(config, row, encoder, counts)
        if pair is not None:
            chats += pair
            margins.append(_margin(config, row))
    encoded = encoder.encode(chats)
    pairs = []
    for (prompt, chosen, _), (_, rejected, _), margin in zip(encoded[::2], encoded[1::2], margins, strict=True):
        fitted = fit_responses(prompt, [chosen, rejected], config, encoder.tokenizer, counts)
        if fitted is not None:
            pairs.append(Pair(fitted, chosen, rejected, margin))
    return PreferenceDataset(cap(pairs, config, counts, "pairs"), counts)


def _pair(
    config: PreferenceDataConfig, row: Row, encoder: ResponseEncoder, counts: dict[str, int]
) -> tuple[Chat, Chat] | None:
    chosen, rejected = (
        response_value(row.column(key, setting), row.where, key)
        for key, setting in ((config.chosen_key, "chosen_key"), (config.rejected_key, "rejected_key"))
    )
    if is_blank(chosen) or is_blank(rejected):
        counts["empty_response"] += 1
        return None
    if chosen == rejected:
        counts["same"] += 1
        return None
    if isinstance(chosen, list) != isinstance(rejected, list):
        raise ConfigError(f"{row.where}: one response is text and the other a chat; write both alike")
    if config.prompt_key:
        prompt = row.values[config.prompt_key]
        if isinstance(chosen, list):
            chosen, rejected = (_without_prompt(prompt, turns) for turns in (chosen, rejected))
            if len(chosen) != 1 or len(rejected) != 1:
                counts["not_one_turn"] += 1
                return None
        return encoder.join(prompt, chosen, row.where), encoder.join(prompt, rejected, row.where)
    if isinstance(chosen, list):
        return _chats(config, chosen, rejected, row, encoder, counts)
    shared = _shared_text(chosen, rejected)
    if not shared:
        raise ConfigError(
            f"{row.where}: columns {config.chosen_key!r} and {config.rejected_key!r} share no prompt: set "
            "prompt_key to the column with the prompt"
        )
    if config.apply_chat_template or config.input_template is not None:
        raise ConfigError(
            f"{row.where}: without prompt_key a text is taken as it is: set prompt_key, write chats, or leave out "
            "apply_chat_template and input_template"
        )
    return encoder.continued(shared, chosen[len(shared) :]), encoder.continued(shared, rejected[len(shared) :])


def _chats(
    config: PreferenceDataConfig,
    chosen: list[Any],
    rejected: list[Any],
    row: Row,
    encoder: ResponseEncoder,
    counts: dict[str, int],
) -> tuple[Chat, Chat] | None:
    """Whole chats that are the same up to the last turn."""
    if not config.apply_chat_template:
        raise ConfigError(f"{row.where}: the responses are chats; set apply_chat_template = true")
    for chat in (chosen, rejected):
        check_messages(chat, row.where, "a response")
    if len(chosen) < 2 or chosen[:-1] != rejected[:-1]:
        counts["not_one_turn"] += 1
        return None
    first = len(chosen) - 1
    better, worse = encoder.whole(chosen, row.where, first), encoder.whole(rejected, row.where, first)
    if better is None or worse is None:
        counts["not_one_turn"] += 1
        return None
    return better, worse


def _without_prompt(prompt: Any, turns: list[Any]) -> list[Any]:
    """The turns behind the prompt, where a response repeats it (as a chat whose prompt stands beside it)."""
    asked = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    if len(turns) > len(asked) and turns[: len(asked)] == asked:
        return turns[len(asked) :]
    return turns


def _shared_text(chosen: str, rejected: str) -> str:
    """What both texts begin with, up to the white space before the word in which they part."""
    shared = shared_prefix(chosen, rejected)
    if len(shared) in (len(chosen), len(rejected)):
        shared = shared[:-1]
    while shared and not shared[-1].isspace():
        shared = shared[:-1]
    return shared[:-1] if shared.endswith(" ") else shared


def _margin(config: PreferenceDataConfig, row: Row) -> float:
    if not config.margin_key:
        return 0.0
    value = row.column(config.margin_key, "margin_key")
    try:
        margin = float(value)
    except (TypeError, ValueError):
        margin = math.nan
    if isinstance(value, bool) or not math.isfinite(margin):
        raise ConfigError(f"{row.where}: the margin in column {config.margin_key!r} is a number, not {_shown(value)}")
    return margin


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, str | int | float) else kind(value)
