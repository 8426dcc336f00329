"""No row is ever both in training and in held-out data."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlctl.core.errors import ConfigError
from rlctl.data.config import SourceConfig


def check_apart(train: Sequence[SourceConfig], held_out: Sequence[SourceConfig]) -> None:
    """ConfigError where a training data set is a held-out one, or cut from the same rows otherwise."""
    for config, other in itertools.product(train, held_out):
        if _rows_of(config) != _rows_of(other):
            continue
        name = config.task.name if config.task else config.path
        if config.splits != other.splits or config.split_key != other.split_key:
            raise ConfigError(
                f"{name}: training and held-out data are cut from the same rows by different splits or split_key, so "
                "that their parts overlap: use the same splits and split_key for both"
            )
        if config.split == other.split:
            raise ConfigError(
                f"{name}: split {config.split!r} is training and held-out data at once: choose another split, or "
                "cut one with splits = { train = 0.9, test = 0.1 }"
            )


def identity(item: Any) -> str:
    """What makes two items the same: a prompt with its answers, whatever the metadata."""
    names = ("prompt_ids", "response_ids", "chosen_ids", "rejected_ids", "input_ids")
    return json.dumps([getattr(item, name, None) for name in names])


def _rows_of(config: SourceConfig) -> tuple[str, str | None, str]:
    """Names the rows that `splits` are cut from."""
    if config.task is not None:
        return config.task.model_dump_json(), None, ""
    path = Path(config.path).expanduser()
    own_split = "train" if config.splits else config.split
    return str(path.resolve()) if path.exists() else config.path, config.name, own_split
