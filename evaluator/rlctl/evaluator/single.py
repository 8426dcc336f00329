"""Single mode: one problem a record, right or wrong by rules or by a task's verifier; accuracy and pass@k."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rlctl.evaluator import tasks
from rlctl.evaluator.asking import Progress
from rlctl.evaluator.chart import draw
from rlctl.evaluator.config import EvaluatorConfig
from rlctl.evaluator.evaluate import read_rows
from rlctl.evaluator.files import CHART, RESULTS, SUMMARY, WORKBOOK, whole, write_lines, write_summary
from rlctl.evaluator.gold import GoldIndex, GoldItem, load_gold
from rlctl.evaluator.labels import Language, label
from rlctl.evaluator.records import TOTAL, BadRow, Record
from rlctl.evaluator.sheets import HEADING, Cell, Workbook
from rlctl.evaluator.statistics import mean_interval, pass_at_k, share
from rlctl.evaluator.workbook import percent, write_bad_rows
from rlctl.grading.extract import final_answer
from rlctl.grading.grade import grade
from rlctl.grading.text import normalise, without_thought


@dataclass(slots=True)
class SingleRow:
    """One graded record; right is None where there is no gold answer."""

    record: Record
    answer: str | None
    extracted: str | None
    right: bool | None
    reason: str


def gold_items(config: EvaluatorConfig, bad: list[BadRow] | None = None) -> list[GoldItem]:
    """Gold from a file, the hub, or a reasoning-gym task; rows that cannot be used go to `bad`."""
    if config.gold.startswith(tasks.PREFIX):
        return tasks.task_items(config.gold, config.max_samples, config.seed)
    return load_gold(config.gold, config.gold_split, bad)


def evaluate_single(config: EvaluatorConfig, on_progress: Callable[[Progress], None]) -> dict[str, Any]:
    """Grades every record and writes the report; returns the summary."""
    begin = time.monotonic()
    read, bad = read_rows(config)
    records = [row.record for row in read]
    needed = any(record.answer is None and "task" not in record.metadata for record in records)
    items = gold_items(config, bad) if needed or not records else []
    index = GoldIndex(items)
    rows: list[SingleRow] = []
    for record in records:
        rows.append(_graded(record, index, items))
        on_progress(Progress(len(rows), len(records), -1.0, 0.0))
    summary = {
        "version": 1, "mode": "single", "state": "done", "message": "",
        "data_sets": _data_sets(rows, config), "bad_rows": [asdict(row) for row in bad],
        "run": {"seconds": round(time.monotonic() - begin, 3)},
    }  # fmt: skip
    _write(config, rows, bad, summary)
    return summary


def _graded(record: Record, index: GoldIndex, items: Sequence[GoldItem]) -> SingleRow:
    text = record.text()
    if "task" in record.metadata:
        return _by_task(record, text.output)
    answer = record.answer
    if answer is None:
        found = index.find(text.prompt)
        if len(found) != 1:
            reason = "gold_unmatched" if not found else "gold_ambiguous"
            return SingleRow(record, None, None, None, reason)
        answer = items[found[0][1]].answer
    result = grade(text.output, answer)
    return SingleRow(record, answer.rsplit("####", 1)[-1].strip(), result.extracted, result.equal, result.reason)


def _by_task(record: Record, output: str) -> SingleRow:
    about = record.metadata
    rest = without_thought(output)
    found = final_answer(normalise(rest)) if rest is not None else None
    extracted = found.text if found else None
    score = max(
        tasks.score(str(about["task"]), int(about["size"]), int(about["seed"]), int(about["index"]), text)
        for text in {extracted, rest.strip() if rest else None}
    )
    return SingleRow(record, record.answer, extracted, score >= 1.0, "" if score >= 1.0 else f"verifier: {score:g}")


def _data_sets(rows: Sequence[SingleRow], config: EvaluatorConfig) -> dict[str, Any]:
    groups: dict[str, list[SingleRow]] = defaultdict(list)
    for row in rows:
        groups[row.record.dataset].append(row)
    if len(groups) != 1:
        groups[TOTAL] = list(rows)
    return {name: _statistics(group, config) for name, group in groups.items()}


def _statistics(rows: Sequence[SingleRow], config: EvaluatorConfig) -> dict[str, Any]:
    prompts: dict[tuple[str, str], list[bool]] = defaultdict(list)
    for row in rows:
        if row.right is not None:
            prompts[row.record.dataset, row.record.prompt_id].append(row.right)
    measures: dict[str, Any] = {"accuracy": asdict(share([row.right for row in rows]))}
    if len(prompts) and any(len(samples) > 1 for samples in prompts.values()):
        # Samples of one prompt are not independent: the interval resamples prompts.
        for k in config.pass_k:
            enough = [samples for samples in prompts.values() if len(samples) >= k]
            values = [pass_at_k(sum(samples), len(samples), k) for samples in enough]
            low, high = mean_interval(values, resamples=config.bootstrap, seed=config.seed) if values else (None, None)
            measures[f"pass@{k}"] = {
                "value": sum(values) / len(values) if values else None, "low": low, "high": high,
                "n": len(values), "unscored": len(prompts) - len(values),
            }  # fmt: skip
    return {"records": len(rows), "prompts": len(prompts), "measures": measures}


def _write(config: EvaluatorConfig, rows: Sequence[SingleRow], bad: Sequence[BadRow], summary: dict[str, Any]) -> None:
    folder = Path(config.output_dir)
    whole(folder / RESULTS, lambda path: write_lines(path, map(_result, rows)))
    names = list(next(iter(summary["data_sets"].values()))["measures"])
    whole(folder / CHART, lambda path: draw(path, summary, names, config.language))
    whole(folder / WORKBOOK, lambda path: _workbook(path, summary, rows, bad, config.language))
    write_summary(folder / SUMMARY, summary)


def _result(row: SingleRow) -> dict[str, Any]:
    return {
        "id": row.record.id, "data_set": row.record.dataset, "line": row.record.line, "answer": row.answer,
        "extracted": row.extracted, "right": row.right, "reason": row.reason,
    }  # fmt: skip


def _workbook(
    path: Path, summary: dict[str, Any], rows: Sequence[SingleRow], bad: Sequence[BadRow], language: Language
) -> None:
    with Workbook(path, language) as book:
        book.sheet(label("summary", language), (36, 12, 12, 12, 12, 12), None, _summary(summary, language))
        header = [
            label(name, language) for name in ("id", "right", "answer", "extracted", "reason", "prompt", "output")
        ]
        for name in dict.fromkeys(row.record.dataset for row in rows):
            cells = (_cells(row, language) for row in rows if row.record.dataset == name)
            book.sheet(name, (18, 8, 16, 16, 24, 60, 80), header, cells)
        write_bad_rows(book, bad)


def _cells(row: SingleRow, language: Language) -> list[Cell]:
    text = row.record.text()
    word = "" if row.right is None else label("yes" if row.right else "no", language)
    return [row.record.id, word, row.answer, row.extracted, row.reason, text.prompt, text.output]


def _summary(summary: dict[str, Any], language: Language) -> list[list[Cell]]:
    lines: list[list[Cell]] = [[HEADING + label("single_title", language)]]
    for name, entry in summary["data_sets"].items():
        shown = label("all_sets", language) if name == TOTAL else name
        lines += [[], [HEADING + shown, label("records", language), entry["records"]]]
        lines += [[HEADING + label("measure", language), label("value", language), label("interval", language), "",
                   label("n", language), label("unscored", language)]]  # fmt: skip
        for measure, item in entry["measures"].items():
            shares = (percent(item[key]) for key in ("value", "low", "high"))
            lines.append([label(measure, language), *shares, item["n"], item["unscored"]])
    return lines
