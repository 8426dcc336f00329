"""Rows of a data set, wherever it lies: local files and folders, `save_to_disk` folders, the hub, or a task.

A row keeps the place it came from, so that an error can name it.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlctl.core.errors import ConfigError, NotFoundError, UnavailableError
from rlctl.data.config import SourceConfig
from rlctl.data.tasks import task_entries

SUFFIXES = (".json", ".jsonl", ".csv", ".parquet")
#: `json@./data`: the files of one kind in a folder.
KINDS = {"json": (".json", ".jsonl"), "jsonl": (".jsonl",), "csv": (".csv",), "parquet": (".parquet",)}


@dataclass(frozen=True)
class Row:
    """One row: its columns, where it stands (`file:line` or `data set, row n`), and its task's name if any."""

    values: dict[str, Any]
    where: str
    task: str = ""

    def column(self, key: str, setting: str) -> Any:
        """The value of a column; ConfigError names the place, the columns there are, and the setting."""
        if key not in self.values:
            raise ConfigError(
                f"{self.where} has no column {key!r}; it has: {', '.join(self.values) or 'none'}. "
                f"Set {setting} to one of them."
            )
        return self.values[key]


def load_rows(config: SourceConfig) -> list[Row]:
    """All rows of the chosen source and own split (`splits` are cut later). Raises RlctlError."""
    if config.task is not None:
        task = config.task
        return [
            Row(entry, f"task {task.name}, question {index}", task.name)
            for index, entry in enumerate(task_entries(task))
        ]
    if not config.path:
        raise ConfigError("no data: set path (a hub name, a file or a folder) or task")
    split = "train" if config.splits else config.split
    kind, at, folder = config.path.partition("@")
    if at and kind in KINDS:
        if not Path(folder).expanduser().is_dir():
            raise NotFoundError(
                f"path {config.path!r}: there is no folder {folder}; write a file's path without {kind}@"
            )
        return _read_folder(Path(folder).expanduser(), split, KINDS[kind])
    path = Path(config.path).expanduser()
    if path.is_file():
        if split != "train":
            raise ConfigError(f"{path} is one file and has no split {split!r}; leave split out, or name a folder")
        return list(read_file(path))
    if path.is_dir():
        return _read_folder(path, split)
    if path.suffix in SUFFIXES or config.path.startswith((".", "/", "~")) or config.path.count("/") > 1:
        raise NotFoundError(f"there is no file or folder {path}")
    return _read_hub(config.path, config.name, split)


def read_file(path: Path) -> Iterator[Row]:
    """Rows of a json (a list of objects, or one object a line), jsonl, csv or parquet file."""
    try:
        yield from _read_file(path)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no UTF-8 text ({error.reason} at byte {error.start}): convert it") from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None


def _read_file(path: Path) -> Iterator[Row]:
    if path.suffix == ".parquet":
        yield from _read_parquet(path)
    elif path.suffix == ".csv":
        yield from _read_csv(path)
    elif path.suffix == ".jsonl":
        yield from _read_lines(path)
    elif path.suffix == ".json":
        text = path.read_text(encoding="utf-8-sig")
        if not text.lstrip().startswith("["):
            yield from _read_lines(path)
            return
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise ConfigError(f"{path}:{error.lineno}: no valid JSON: {error.msg}") from None
        for number, value in enumerate(values):
            yield Row(_object(value, f"{path}, row {number}"), f"{path}, row {number}")
    else:
        raise ConfigError(f"{path}: data files end in {', '.join(SUFFIXES)}")


def _read_csv(path: Path) -> Iterator[Row]:
    # The reader's own limit of a field, 128 KiB, is less than a long response.
    csv.field_size_limit(2**31 - 1)
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file)
        line = 2
        try:
            for values in reader:
                if None in values:
                    raise ConfigError(f"{path}:{line} has more fields than the header has columns")
                yield Row(dict(values), f"{path}:{line}")
                # A quoted field may hold line breaks: a row begins where the one before ended.
                line = reader.line_num + 1
        except csv.Error as error:
            raise ConfigError(f"{path}:{line}: no valid CSV: {error}") from None


def _read_lines(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except json.JSONDecodeError as error:
                raise ConfigError(f"{path}:{number}: no valid JSON: {error.msg}") from None
            yield Row(_object(value, f"{path}:{number}"), f"{path}:{number}")


def _read_parquet(path: Path) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.ParquetFile(path).read()
    except pyarrow.ArrowInvalid as error:
        raise ConfigError(f"{path} is no valid parquet file: {error}") from None
    for number, values in enumerate(table.to_pylist()):
        yield Row(values, f"{path}, row {number}")


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where} is a {type(value).__name__}; each row must be an object with columns")
    return value


def _read_folder(folder: Path, split: str, suffixes: tuple[str, ...] = SUFFIXES) -> list[Row]:
    if suffixes is SUFFIXES and _is_saved(folder):
        return _read_saved(folder, split)
    files = sorted(file for file in folder.rglob("*") if file.suffix in suffixes and file.is_file())
    if not files:
        raise NotFoundError(f"{folder} holds no {', '.join(suffixes)} file, nor a data set of save_to_disk")
    chosen = [file for file in files if split in (_split_of(file), file.stem)]
    if not chosen and split == "train" and not any(_split_of(file) for file in files):
        chosen = files
    if not chosen:
        names = sorted({_split_of(file) for file in files} - {""}) or ["train (all files)"]
        raise NotFoundError(f"{folder} has no split {split!r}; it has: {', '.join(names)}")
    return [row for file in chosen for row in read_file(file)]


def _split_of(file: Path) -> str:
    """`test` of `test.jsonl` and of `test-00000-of-00002.parquet`; empty for names that are no split."""
    stem = file.stem.split("-", 1)[0]
    return stem if stem in ("train", "test", "validation", "valid", "dev", "eval") else ""


def _is_saved(folder: Path) -> bool:
    return (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file()


def _read_saved(folder: Path, split: str) -> list[Row]:
    from datasets import DatasetDict, load_from_disk

    data = load_from_disk(str(folder))
    if isinstance(data, DatasetDict):
        if split not in data:
            raise NotFoundError(f"{folder} has no split {split!r}; it has: {', '.join(data)}")
        data = data[split]
    elif split != "train":
        raise NotFoundError(f"{folder} holds one data set without splits; leave split out")
    return [Row(dict(values), f"{folder}, row {number}") for number, values in enumerate(data)]


def _read_hub(path: str, name: str | None, split: str) -> list[Row]:
    from datasets import load_dataset
    from datasets.exceptions import DatasetNotFoundError

    try:
        data = load_dataset(path, name, split=split)
    except DatasetNotFoundError:
        raise NotFoundError(
            f"data set {path!r} is neither a file nor a folder here, nor found on the hub; check its name, "
            "and HF_TOKEN if it is private"
        ) from None
    except ValueError as error:
        # A hub data set whose split or configuration is wrong: its message lists the right ones.
        raise ConfigError(f"data set {path!r}: {error}") from None
    except (OSError, ConnectionError) as error:
        raise UnavailableError(
            f"data set {path!r} is neither a file nor a folder here, and the hub cannot be reached "
            f"({type(error).__name__}). Give a local path, or set HF_ENDPOINT to a mirror."
        ) from error
    return [Row(dict(values), f"{path}, row {number}") for number, values in enumerate(data)]
