"""Writes every file of the report, each whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rlctl.evaluator.chart import draw
from rlctl.evaluator.evaluate import Evaluation
from rlctl.evaluator.rows import JUDGED, Row
from rlctl.evaluator.workbook import write_workbook

RESULTS, SUMMARY = "evaluation_results.jsonl", "summary.json"
CHART, WORKBOOK = "evaluation_results.png", "evaluation_results.xlsx"


def write_report(evaluation: Evaluation) -> list[Path]:
    """Results, chart, workbook and summary, in that order: when the summary is new, all of them are."""
    config, folder = evaluation.config, Path(evaluation.config.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    extra = [name for name in evaluation.template.booleans if name not in JUDGED]
    whole(folder / RESULTS, lambda path: write_lines(path, map(result, evaluation.rows)))
    whole(folder / CHART, lambda path: draw(path, evaluation.summary, config.chart, config.language))
    whole(
        folder / WORKBOOK,
        lambda path: write_workbook(
            path, evaluation.summary, evaluation.rows, evaluation.bad, extra, config.language
        ),
    )  # fmt: skip
    write_summary(folder / SUMMARY, evaluation.summary)
    return [folder / name for name in (RESULTS, CHART, WORKBOOK, SUMMARY)]


def write_summary(path: Path, summary: dict[str, Any]) -> None:
    """Writes summary.json."""
    text = json.dumps(summary, ensure_ascii=False, indent=2).encode("utf-8", "replace").decode()
    whole(path, lambda target: target.write_text(text + "\n", encoding="utf-8"))


def write_lines(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """One JSON object a line."""
    with path.open("w", encoding="utf-8", errors="backslashreplace") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def result(row: Row) -> dict[str, Any]:
    """A line of evaluation_results.jsonl."""
    return {
        "id": row.record.id, "data_set": row.record.dataset, "line": row.record.line, "gold": row.status,
        "gold_a": row.gold_a, "gold_b": row.gold_b, "extracted_a": row.extracted_a, "extracted_b": row.extracted_b,
        "measures": row.measures, "reasons": row.reasons,
        "verdicts": {name: asdict(verdict) for name, verdict in row.verdicts.items()},
        "swapped": {name: asdict(verdict) for name, verdict in row.swapped.items()},
    }  # fmt: skip


def whole(path: Path, write: Callable[[Path], object]) -> None:
    """Writes aside and renames: a reader never sees half a file."""
    aside = path.with_name(f".{path.stem}.part{path.suffix}")
    write(aside)
    os.replace(aside, path)
