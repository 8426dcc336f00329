"""Prompts with the responses to learn, chats to learn turn by turn, or plain text, as token ids."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rlctl.core.errors import ConfigError
from rlctl.data.config import SupervisedDataConfig
from rlctl.data.dataset import Dataset
from rlctl.data.filters import cap, fit_responses, select_rows
from rlctl.data.prompts import input_key, label_of
from rlctl.data.responses import ResponseEncoder, is_blank, response_value
from rlctl.data.rows import Row
from rlctl.data.template import encode
from rlctl.data.turns import Chat


@dataclass(frozen=True)
class Example:
    """A prompt of one token or more, and what follows it."""

    prompt_ids: list[int]
    response_ids: list[int]
    mask: list[bool]
    """Which tokens of `response_ids` are learnt: all of a single response, with the token that ends it; in a
    chat those of the assistant's turns."""


class SupervisedDataset(Dataset[Example]):
    """Examples that passed the filters; `counts` as of `PromptDataset`, with `empty_response`,
    `no_assistant_turn`, `response_too_long` and `over_max_len`. In pretrain mode `kept` counts pieces."""


def load_supervised(config: SupervisedDataConfig, tokenizer: Any) -> SupervisedDataset:
    """Reads, filters and tokenises prompts and responses. Raises ConfigError, NotFoundError, UnavailableError."""
    encoder = ResponseEncoder(config, tokenizer)
    counts: dict[str, int] = {}
    rows = select_rows(config, counts, lambda row: row.column(input_key(config, row), "input_key"))
    if config.pretrain:
        pieces = list(_pieces(config, rows, tokenizer))
        return SupervisedDataset(cap(pieces, config, counts, "texts"), counts)
    counts.update(empty_response=0, no_assistant_turn=0, response_too_long=0, over_max_len=0)
    chats = [chat for row in rows if (chat := _chat(config, row, encoder, counts)) is not None]
    examples = []
    for prompt, response, mask in encoder.encode(chats):
        fitted = fit_responses(prompt, [response], config, encoder.tokenizer, counts)
        if fitted is not None:
            examples.append(Example(fitted, response, mask))
    return SupervisedDataset(cap(examples, config, counts, "examples"), counts)


def _chat(config: SupervisedDataConfig, row: Row, encoder: ResponseEncoder, counts: dict[str, int]) -> Chat | None:
    """What a row teaches, or None where it is counted away."""
    value = row.values[input_key(config, row)]
    if not config.output_key and isinstance(value, list) and config.apply_chat_template:
        spoken = any(isinstance(message, dict) and message.get("role") == "assistant" for message in value)
        if spoken or config.label_key not in row.values:
            chat = encoder.whole(value, row.where)
            counts["no_assistant_turn"] += chat is None
            return chat
    if config.output_key:
        output = response_value(row.column(config.output_key, "output_key"), row.where, config.output_key)
    else:
        output = label_of(config, row)
    if is_blank(output):
        counts["empty_response"] += 1
        return None
    return encoder.join(value, output, row.where)


def _pieces(config: SupervisedDataConfig, rows: list[Row], tokenizer: Any) -> Iterator[Example]:
    """Texts, EOS behind each, in pieces whose first token is the last of the piece before."""
    limit = config.max_len or config.max_response_len
    if limit < 2:
        raise ConfigError(f"pretrain learns from pieces of 2 tokens or more: raise the limit of {limit}")
    texts = []
    for row in rows:
        text = row.values[input_key(config, row)]
        if not isinstance(text, str):
            raise ConfigError(f"{row.where}: pretrain learns text, and column {config.input_key!r} is no text")
        texts.append(text if config.input_template is None else config.input_template.replace("{}", text))
    for encoded in encode(texts, tokenizer, chat=False):
        ids = [*encoded, tokenizer.eos_token_id]
        for start in range(0, len(ids) - 1, limit - 1):
            piece = ids[start : start + limit]
            yield Example(piece[:1], piece[1:], [True] * (len(piece) - 1))
