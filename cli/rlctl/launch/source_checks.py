"""What a recipe names and must be there: models, data sets, files. Each fault comes with the mend in words."""

from __future__ import annotations

import difflib
import importlib.util
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from rlctl.data.config import SourceConfig

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
DATA_SUFFIXES = (".json", ".jsonl", ".csv", ".parquet")


def model_faults(named: Mapping[str, str]) -> Iterator[str]:
    """What is wrong with models by the settings that name them; of these only `model` must be set."""
    if not named["model"]:
        yield "model is not set: give a folder, a hub name such as HuggingFaceTB/SmolLM2-135M-Instruct, or a recipe"
    for name, model in named.items():
        if not model:
            continue
        folder = Path(model).expanduser()
        if folder.is_dir():
            if not (folder / "config.json").is_file():
                yield f"{name}: {folder} is no Hugging Face model (it has no config.json)"
        elif model.startswith((".", "/", "~")) or not HUB_NAME.fullmatch(model):
            yield f"{name}: {model!r} is no folder here and no hub name (owner/name): correct the path"


def data_faults(name: str, data: SourceConfig) -> Iterator[str]:
    """What is wrong with where a data set lies."""
    if data.task is None and not data.path:
        yield f"{name}.path is not set: name a data set or a file, or a reasoning-gym task ({name}.task)"
    if data.path:
        path = Path(data.path).expanduser()
        local = path.suffix in DATA_SUFFIXES or data.path.startswith((".", "/", "~")) or data.path.count("/") > 1
        if local and not path.exists():
            yield f"{name}.path: {data.path} does not exist: correct it, or give a hub name (owner/name)"
        elif path.is_file() and path.stat().st_size == 0:
            keys = (getattr(data, setting, "") for setting in ("input_key", "prompt_key", "chosen_key"))
            yield f"{name}.path: {data.path} is empty: it needs rows with {next(filter(None, keys))!r}"
    if data.task is not None:
        yield from _task(f"{name}.task.name", data.task.name)


def _task(name: str, task: str) -> Iterator[str]:
    """Looks for the name in the library's files first: to import it all takes seconds."""
    spec = importlib.util.find_spec("reasoning_gym")
    if spec is None or not spec.submodule_search_locations:
        return
    root = Path(next(iter(spec.submodule_search_locations)))
    if any(f'"{task}"' in path.read_text(encoding="utf-8") for path in root.glob("*/*.py")):
        return
    from reasoning_gym.factory import DATASETS

    if task not in DATASETS:
        near = difflib.get_close_matches(task, DATASETS, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}?" if near else "its gallery lists them"
        yield f"{name}: reasoning-gym has no task {task!r}: {hint}"


def missing_files(named: Mapping[str, Path | None]) -> Iterator[str]:
    """Files that do not exist, by the settings that name them."""
    for name, path in named.items():
        if path is not None and not path.expanduser().is_file():
            yield f"{name}: {path} does not exist: correct the path (it is relative to where rlctl is started)"
