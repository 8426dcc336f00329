"""Questions of reasoning-gym tasks."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import warnings
from typing import Any

from rlctl.core.errors import ConfigError
from rlctl.data.config import TaskConfig
from rlctl.data.corrupt import corrupted


def task_entries(config: TaskConfig) -> list[dict[str, Any]]:
    """The task's entries: `question`, `answer` and `metadata` as reasoning-gym makes them, `size` of them.

    The same settings give the same entries on every machine. Raises ConfigError for an unknown task (with the
    nearest names) and for wrong parameters.
    """
    return list(_entries(config.model_dump_json()))


@functools.lru_cache(maxsize=4)
def _entries(config_json: str) -> tuple[dict[str, Any], ...]:
    config = TaskConfig.model_validate_json(config_json)
    data = _create(config)
    entries = [data[index] for index in range(config.size)]
    if config.corrupt is not None:
        entries = [corrupted(entry, config.corrupt, f"{config.seed}/{index}") for index, entry in enumerate(entries)]
    return tuple(entries)


def _create(config: TaskConfig) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    if config.name not in DATASETS:
        near = difflib.get_close_matches(config.name, DATASETS, n=3, cutoff=0.4)
        hint = f"Did you mean {', '.join(near)}?" if near else f"There are: {', '.join(sorted(DATASETS))}."
        raise ConfigError(f"reasoning-gym has no task {config.name!r}. {hint}")
    known = [field.name for field in dataclasses.fields(DATASETS[config.name][1])]
    for name in config.parameters:
        if name not in known or name in ("seed", "size"):
            allowed = [each for each in known if each not in ("seed", "size")]
            raise ConfigError(
                f"task {config.name!r} has no parameter {name!r}; it has: {', '.join(allowed)} "
                "(size and seed stand beside parameters)"
            )
    try:
        return reasoning_gym.create_dataset(config.name, seed=config.seed, size=config.size, **config.parameters)
    except (AssertionError, ValueError, TypeError) as error:
        raise ConfigError(f"task {config.name!r} refuses its parameters: {error}") from error
