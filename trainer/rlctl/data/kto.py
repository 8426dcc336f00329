"""Responses judged one by one, as token ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rlctl.core.errors import ConfigError
from rlctl.data.config import KTODataConfig
from rlctl.data.dataset import Dataset
from rlctl.data.filters import cap, fit_responses, select_rows
from rlctl.data.responses import ResponseEncoder, is_blank, response_value
from rlctl.data.rows import Row
from rlctl.data.turns import Chat


@dataclass(frozen=True)
class Judged:
    """A prompt and one response, which ends with the token that ends a turn."""

    prompt_ids: list[int]
    response_ids: list[int]
    desirable: bool


class KTODataset(Dataset[Judged]):
    """Judged responses that passed the filters; `counts` as of `SupervisedDataset`, with `desirable` among the kept."""


def load_kto(config: KTODataConfig, tokenizer: Any) -> KTODataset:
    """Reads, filters and tokenises judged responses. Raises ConfigError, NotFoundError, UnavailableError."""
    if config.task is not None and config.task.corrupt is None:
        raise ConfigError("a reasoning-gym task has no judged responses: set path, or task.corrupt to make some")
    encoder = ResponseEncoder(config, tokenizer)
    counts: dict[str, int] = {}
    rows = select_rows(config, counts, lambda row: row.column(config.input_key, "input_key"))
    counts.update(empty_response=0, no_assistant_turn=0, response_too_long=0, over_max_len=0)
    chats: list[Chat] = []
    judgements: list[bool] = []
    for row in rows:
        chat = _chat(config, row, encoder, counts)
        if chat is not None:
            chats.append(chat)
            judgements.append(judgement(row.column(config.label_key, "label_key"), row.where, config.label_key))
    judged = []
    for (prompt, response, _), desirable in zip(encoder.encode(chats), judgements, strict=True):
        fitted = fit_responses(prompt, [response], config, encoder.tokenizer, counts)
        if fitted is not None:
            judged.append(Judged(fitted, response, desirable))
    judged = cap(judged, config, counts, "judged responses")
    counts["desirable"] = sum(each.desirable for each in judged)
    return KTODataset(judged, counts)


def judgement(value: Any, where: str, key: str) -> bool:
    """True and false as data sets write them: booleans, 1 and 0, or these as text (csv)."""
    if isinstance(value, str):
        word = value.strip().lower()
        value = {"true": True, "1": True, "false": False, "0": False}.get(word, value)
    if isinstance(value, int | float) and value in (0, 1):
        return bool(value)
    raise ConfigError(f"{where}: the judgement in column {key!r} is true or false (1 or 0), not {value!r}")


def _chat(config: KTODataConfig, row: Row, encoder: ResponseEncoder, counts: dict[str, int]) -> Chat | None:
    prompt = row.values[config.input_key]
    if config.output_key:
        output = response_value(row.column(config.output_key, "output_key"), row.where, config.output_key)
        if is_blank(output):
            counts["empty_response"] += 1
            return None
        if isinstance(output, list) and len(output) != 1:
            raise ConfigError(f"{row.where}: the response in column {config.output_key!r} is one assistant turn")
        return encoder.join(prompt, output, row.where)
    if not isinstance(prompt, list) or not config.apply_chat_template:
        raise ConfigError(
            f"{row.where}: without output_key column {config.input_key!r} holds a chat that ends with the response "
            "(with apply_chat_template = true); set output_key to the column with the response"
        )
    chat = encoder.whole(prompt, row.where, len(prompt) - 1)
    counts["no_assistant_turn"] += chat is None
    return chat
