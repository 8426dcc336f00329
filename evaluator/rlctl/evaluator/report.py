"""Writes every file of the report."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from rlctl.evaluator.chart import draw
from rlctl.evaluator.evaluate import Evaluation
from rlctl.evaluator.files import CHART, RESULTS, SUMMARY, WORKBOOK, whole, write_lines, write_summary
from rlctl.evaluator.rows import JUDGED, Row
from rlctl.evaluator.workbook import write_workbook


def write_report(evaluation: Evaluation) -> list[Path]:
    """Results, chart, workbook and summary, in that order: when the summary is new, all of them are."""
    config, folder = evaluation.config, Path(evaluation.config.output_dir)
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


def result(row: Row) -> dict[str, Any]:
    """A line of evaluation_results.jsonl."""
    return {
        "id": row.record.id, "data_set": row.record.dataset, "line": row.record.line, "gold": row.status,
        "gold_a": row.gold_a, "gold_b": row.gold_b, "extracted_a": row.extracted_a, "extracted_b": row.extracted_b,
        "measures": row.measures, "reasons": row.reasons,
        "verdicts": {name: asdict(verdict) for name, verdict in row.verdicts.items()},
        "swapped": {name: asdict(verdict) for name, verdict in row.swapped.items()},
    }  # fmt: skip
