"""Reads the files with model outputs: streaming, one bad row never ends the run, each is named by file and line."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rlctl.core.errors import ConfigError

#: A longer line is a bad row, bytes.
MAX_LINE = 16 * 2**20
#: Name of the entry over all data sets; no data set can have it.
TOTAL = "(all)"


class Place(NamedTuple):
    """Where a record's bytes stand."""

    path: Path
    offset: int
    length: int


@dataclass(frozen=True)
class BadRow:
    """A row that cannot be used: file, line (from 1) and why."""

    file: str
    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class Text:
    """The heavy half of a record, read again from its place when needed."""

    prompt: str
    output: str


@dataclass(slots=True)
class Record:
    """A row to judge, without its text: 10,000 of them are small.

    id: `dataset:line`. prompt_id: the same for equal prompts. answer_a, answer_b: explicit gold, if in the row.
    """

    dataset: str
    line: int
    place: Place
    prompt_id: str
    answer_a: str | None = None
    answer_b: str | None = None
    answer: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return f"{self.dataset}:{self.line}"

    def text(self) -> Text:
        """Reads prompt and output from the file. Raises ConfigError when the file changed since."""
        with self.place.path.open("rb") as file:
            file.seek(self.place.offset)
            raw = file.read(self.place.length)
        row = parsed(raw)
        prompt, output = (_text(row.get("prompt")), _text(row.get("output"))) if isinstance(row, dict) else (None, None)
        if prompt is None or output is None:
            raise ConfigError(f"{self.place.path}:{self.line} changed while it was read; run again")
        return Text(prompt, output)


def data_sets(folder: Path) -> list[tuple[str, Path]]:
    """Every `.jsonl` below a folder as (name of the data set, file), sorted; a folder that cannot be entered, too.

    Raises ConfigError when there is none.
    """
    if folder.is_file():
        return [(folder.stem, folder)]
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}; put the model's outputs there as .jsonl, or set outputs")
    closed: list[OSError] = []
    paths = [Path(place, name) for place, _, names in os.walk(folder, onerror=closed.append) for name in names]
    files = [path for path in paths if path.name.endswith(".jsonl")] + [Path(error.filename) for error in closed]
    if folder in files:
        raise ConfigError(f"cannot read the folder {folder}: {closed[0].strerror}")
    if not files:
        raise ConfigError(f"{folder} holds no .jsonl file; each line needs 'prompt' and 'output'")
    named = ((path.relative_to(folder).with_suffix("").as_posix(), path) for path in sorted(files))
    return [(f"{name}.jsonl" if name == TOTAL else name, path) for name, path in named]


def read(dataset: str, path: Path, limit: int, answer_keys: list[str]) -> Iterator[Record | BadRow]:
    """The first `limit` records of a file, and the bad rows among them; a file that gives none is a bad row itself."""
    empty = True
    try:
        if path.is_dir():
            os.scandir(path).close()
        if path.exists() and not path.is_file():
            raise OSError(None, "not a regular file")
        for item in _rows(dataset, path, limit, answer_keys):
            empty = False
            yield item
    except OSError as error:
        yield BadRow(path.as_posix(), 1, f"cannot be read: {error.strerror}")
        return
    if empty:
        yield BadRow(path.as_posix(), 1, "the file holds no record")


def _rows(dataset: str, path: Path, limit: int, answer_keys: list[str]) -> Iterator[Record | BadRow]:
    found = 0
    for line, offset, raw in lines(path):
        if found >= limit:
            return
        row = parsed(raw)
        if row is None:
            continue
        if isinstance(row, str):
            yield BadRow(path.as_posix(), line, row)
            continue
        assert raw is not None
        prompt, output = _text(row.get("prompt")), _text(row.get("output"))
        missing = [name for name in ("prompt", "output") if name not in row]
        if missing or prompt is None or output is None:
            reason = f"no {' and no '.join(missing)}" if missing else "prompt and output must be text"
            yield BadRow(path.as_posix(), line, reason)
            continue
        found += 1
        yield Record(
            dataset, line, Place(path, offset, len(raw)), digest(prompt)[:16],
            _given(row.get("answer_a")), _given(row.get("answer_b")),
            next((text for key in answer_keys if (text := _given(row.get(key))) is not None), None),
            row["metadata"] if isinstance(row.get("metadata"), dict) else {},
        )  # fmt: skip


def lines(path: Path) -> Iterator[tuple[int, int, bytes | None]]:
    """(line number, byte offset, bytes without the line break); None for a line over the limit.

    Breaks at LF only, so that U+2028 inside a string breaks nothing.
    """
    with path.open("rb") as file:
        offset, number = 0, 0
        while raw := file.readline(MAX_LINE):
            number += 1
            length = len(raw)
            too_long = length == MAX_LINE and not raw.endswith(b"\n")
            while too_long and not raw.endswith(b"\n"):
                raw = file.readline(MAX_LINE)
                length += len(raw)
                if not raw:
                    break
            yield number, offset, None if too_long else raw.rstrip(b"\r\n")
            offset += length


def parsed(raw: bytes | None) -> dict[str, Any] | str | None:
    """The object in a line of `lines`, or why it is bad, or None for a blank line."""
    if raw is None:
        return f"longer than {MAX_LINE // 2**20} MiB"
    raw = raw.removeprefix(b"\xef\xbb\xbf")
    if not raw.strip():
        return None
    try:
        row = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        return f"not UTF-8 at byte {error.start}"
    except (ValueError, RecursionError) as error:
        return f"not JSON: {error}"
    return row if isinstance(row, dict) else f"not an object but a {type(row).__name__}"


def _text(value: object) -> str | None:
    """Text, with numbers as they are written; None for anything else."""
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return None


def _given(value: object) -> str | None:
    """An answer; None when there is none or it is blank."""
    text = _text(value)
    return text if text and text.strip() else None


def digest(*parts: str) -> str:
    """sha256 over texts, lone surrogates allowed, each part's length included."""
    sha = hashlib.sha256()
    for part in parts:
        raw = part.encode("utf-8", "surrogatepass")
        sha.update(f"{len(raw)}:".encode())
        sha.update(raw)
    return sha.hexdigest()
