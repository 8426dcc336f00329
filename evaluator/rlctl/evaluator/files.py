"""The files of a report: their names, and how each is written whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rlctl.core.errors import FailedPreconditionError

RESULTS, SUMMARY = "evaluation_results.jsonl", "summary.json"
CHART, WORKBOOK = "evaluation_results.png", "evaluation_results.xlsx"


def aside(name: str) -> str:
    """The name under which a file is written before it takes its place."""
    stem, dot, suffix = name.rpartition(".")
    return f".{stem}.part{dot}{suffix}"


def whole(path: Path, write: Callable[[Path], object]) -> None:
    """Writes aside and renames: a reader never sees half a file. Raises FailedPreconditionError when it cannot."""
    part = path.with_name(aside(path.name))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(part)
        os.replace(part, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise FailedPreconditionError(
            f"cannot write {path}: {error.strerror or error}. Every verdict is kept in the journal: mend this and give "
            "the same command again."
        ) from error


def write_summary(path: Path, summary: dict[str, Any]) -> None:
    """Writes summary.json."""
    text = json.dumps(summary, ensure_ascii=False, indent=2).encode("utf-8", "replace").decode()
    whole(path, lambda target: target.write_text(text + "\n", encoding="utf-8"))


def write_lines(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """One JSON object a line."""
    with path.open("w", encoding="utf-8", errors="backslashreplace") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
