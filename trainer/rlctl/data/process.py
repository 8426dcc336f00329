"""Reasoning whose steps are judged, as token ids with a label at each step's end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rlctl.core.errors import ConfigError
from rlctl.data.config import ProcessDataConfig
from rlctl.data.dataset import Dataset
from rlctl.data.filters import cap, select_rows
from rlctl.data.rows import Row
from rlctl.data.template import encode, encode_bare, kind


@dataclass(frozen=True)
class Steps:
    """Question and steps; the reward token is predicted at each of `positions`."""

    input_ids: list[int]
    positions: list[int]
    """Places of the placeholders in `input_ids`, ascending."""
    labels: list[float]
    """Probability that the step before a placeholder is right: 1 or 0, or what lies between."""


class ProcessDataset(Dataset[Steps]):
    """Judged steps that passed the filters; `counts` as of `PromptDataset`, with `no_steps` (none before the cut,
    or none at all) and `cut_steps` (steps behind the cut)."""


def token_of(text: str, tokenizer: Any, setting: str) -> int:
    """The one token of a text; ConfigError names the setting where it is several."""
    (ids,) = encode_bare([text], tokenizer)
    if len(ids) != 1 or ids[0] == tokenizer.unk_token_id:
        raise ConfigError(
            f"{setting}: {text!r} is {'unknown to' if len(ids) == 1 else f'{len(ids)} tokens of'} this tokenizer; "
            "choose a text that is one token, or add it to the tokenizer"
        )
    return ids[0]


def reward_tokens(config: ProcessDataConfig, tokenizer: Any) -> tuple[int, int]:
    """Ids of the reward tokens: right, wrong."""
    return token_of(config.positive, tokenizer, "positive"), token_of(config.negative, tokenizer, "negative")


def load_process(config: ProcessDataConfig, tokenizer: Any) -> ProcessDataset:
    """Reads, filters and tokenises judged steps. Raises ConfigError, NotFoundError, UnavailableError."""
    if config.task is not None and config.task.corrupt is None:
        raise ConfigError("a reasoning-gym task has no judged steps: set path, or task.corrupt to make some")
    placeholder = token_of(config.placeholder, tokenizer, "placeholder")
    reward_tokens(config, tokenizer)
    counts: dict[str, int] = {}
    rows = select_rows(config, counts, lambda row: row.column(config.input_key, "input_key"))
    counts.update(no_steps=0, cut_steps=0)
    texts = [_text(config, row) for row in rows]
    found = []
    for row, text, ids in zip(rows, texts, encode(texts, tokenizer, chat=False), strict=True):
        positions = [place for place, token in enumerate(ids) if token == placeholder]
        if len(positions) != text.count(config.placeholder):
            raise ConfigError(
                f"{row.where}: the tokenizer joins the placeholder {config.placeholder!r} with its neighbours "
                f"({len(positions)} of {text.count(config.placeholder)} are found): put white space around it, or "
                "add it to the tokenizer"
            )
        labels = _labels(config, row, text)
        if len(labels) != len(positions):
            raise ConfigError(
                f"{row.where}: {len(positions)} steps and {len(labels)} labels in column {config.label_key!r}: "
                f"write one label for each {config.placeholder!r}"
            )
        steps = _fit(Steps(ids, positions, labels), config, counts)
        if steps is not None:
            found.append(steps)
    return ProcessDataset(cap(found, config, counts, "judged steps"), counts)


def _fit(steps: Steps, config: ProcessDataConfig, counts: dict[str, int]) -> Steps | None:
    if len(steps.input_ids) > config.max_len:
        if config.too_long == "drop":
            counts["too_long"] += 1
            return None
        kept = sum(place < config.max_len for place in steps.positions)
        counts["truncated"] += 1
        counts["cut_steps"] += len(steps.positions) - kept
        steps = Steps(steps.input_ids[: config.max_len], steps.positions[:kept], steps.labels[:kept])
    if not steps.positions:
        counts["no_steps"] += 1
        return None
    return steps


def _text(config: ProcessDataConfig, row: Row) -> str:
    text = row.values[config.input_key]
    if not isinstance(text, str):
        raise ConfigError(f"{row.where}: column {config.input_key!r} is {kind(text)}; write question and steps as text")
    return text


def _labels(config: ProcessDataConfig, row: Row, text: str) -> list[float]:
    value = row.column(config.label_key, "label_key")
    if isinstance(value, str):
        value = _written_in(config, row, text, value)
    if not isinstance(value, list):
        raise ConfigError(f"{row.where}: column {config.label_key!r} is {kind(value)}; write a list of labels")
    return [_label(config, each, row.where) for each in value]


def _label(config: ProcessDataConfig, value: Any, where: str) -> float:
    if isinstance(value, str) and value.strip() in (config.positive.strip(), config.negative.strip()):
        return float(value.strip() == config.positive.strip())
    if isinstance(value, int | float) and 0 <= value <= 1:
        return float(value)
    raise ConfigError(
        f"{where}: a label is {config.positive!r}, {config.negative!r}, true, false or a probability, not {value!r}"
    )


def _written_in(config: ProcessDataConfig, row: Row, text: str, labelled: str) -> list[str]:
    """The reward tokens of a text that is the input with one in each placeholder's place."""
    pieces = text.split(config.placeholder)
    labels = []
    rest = labelled.removeprefix(pieces[0])
    for piece in pieces[1:]:
        label = next((token for token in (config.positive, config.negative) if rest.startswith(token)), None)
        if label is None or not rest[len(label) :].startswith(piece):
            raise ConfigError(
                f"{row.where}: column {config.label_key!r} is not the input with {config.positive!r} or "
                f"{config.negative!r} for each {config.placeholder!r}"
            )
        labels.append(label)
        rest = rest[len(label) + len(piece) :]
    return labels
