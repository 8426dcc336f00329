"""The workbook: a summary, a sheet a data set, what is unscored and why, and where judge and rules differ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rlctl.evaluator.labels import Language, label
from rlctl.evaluator.records import TOTAL, BadRow
from rlctl.evaluator.rows import JUDGED, RULED, Row
from rlctl.evaluator.sheets import HEADING, Cell, Percent, Workbook
from rlctl.evaluator.summary import differs


def write_workbook(
    path: Path,
    summary: dict[str, Any],
    rows: Sequence[Row],
    bad: Sequence[BadRow],
    extra: Sequence[str],
    language: Language,
) -> None:
    """Writes the whole workbook of a pair evaluation."""
    with Workbook(path, language) as book:
        book.sheet(label("summary", language), (44, 12, 12, 12, 12, 12, 12), None, _summary_rows(summary, language))
        measures = [*JUDGED, *extra, *RULED]
        header = [
            label(name, language)
            for name in ("id", "status", *measures, "gold_a", "extracted_a", "gold_b", "extracted_b", "judge_reason",
                         "unscored", "prompt", "output")
        ]  # fmt: skip
        widths = (18, 11, *(11 for _ in measures), 11, 11, 11, 11, 32, 26, 50, 80)
        for name in dict.fromkeys(row.record.dataset for row in rows):
            book.sheet(
                name, widths, header, (_row(row, measures, language) for row in rows if row.record.dataset == name)
            )
        book.sheet(
            label("unscored", language), (18, 24, 80),
            [label("id", language), label("measure", language), label("reason", language)],
            ([row.record.id, label(name, language), row.reasons.get(name, "")]
             for row in rows for name, value in row.measures.items() if value is None),
        )  # fmt: skip
        book.sheet(
            label("different", language),
            widths,
            header,
            (_row(row, measures, language) for row in rows if differs(row)),
        )
        write_bad_rows(book, bad)


def write_bad_rows(book: Workbook, bad: Sequence[BadRow]) -> None:
    """A sheet with the rows that could not be used, if there are any."""
    if bad:
        header = [label(name, book.language) for name in ("file", "line", "reason")]
        cells: Iterable[list[Cell]] = ([row.file, row.line, row.reason] for row in bad)
        book.sheet(label("bad_rows", book.language), (60, 10, 80), header, cells)


def percent(value: float | None) -> Percent | None:
    """A share as a cell."""
    return None if value is None else Percent(value)


def _row(row: Row, measures: Sequence[str], language: Language) -> list[Cell]:
    text = row.record.text()
    reasons = [
        f"{judge}: {verdict.values['reason']}"
        for judge, verdict in row.verdicts.items()
        if verdict.values and verdict.values.get("reason")
    ]
    return [
        row.record.id, row.status,
        *(_word(row.measures.get(name), language) for name in measures),
        row.gold_a, row.extracted_a, row.gold_b, row.extracted_b,
        "\n".join(reasons), row.unscored, text.prompt, text.output,
    ]  # fmt: skip


def _word(value: bool | None, language: Language) -> str:
    return "" if value is None else label("yes" if value else "no", language)


def _summary_rows(summary: dict[str, Any], language: Language) -> Iterable[list[Cell]]:
    yield [HEADING + label("title", language)]
    if summary["state"] != "done":
        yield [f"{label('stopped', language)}: {summary['message']}"]
    for name, entry in summary["data_sets"].items():
        yield []
        shown = label("all_sets", language) if name == TOTAL else name
        yield [HEADING + f"{label('data_set', language)}: {shown}", label("records", language), entry["records"]]
        yield [HEADING + label("measure", language), label("value", language), label("interval", language), "",
               label("yes", language), label("n", language), label("unscored", language)]  # fmt: skip
        for measure, share in entry["measures"].items():
            yield [label(measure, language), *map(percent, (share["value"], share["low"], share["high"])),
                   share["yes"], share["n"], share["unscored"]]  # fmt: skip
        ratio = entry["ratio"]
        value = ratio["value"] if ratio["value"] is not None else "n/a"
        yield [label("ratio", language), value, ratio["low"], ratio["high"], None, ratio["n"],
               entry["records"] - ratio["n"]]  # fmt: skip
        yield from _agreements(entry, language)
        yield [HEADING + label("gold", language)]
        for status, count in entry["gold"].items():
            yield [status, count]


def _agreements(entry: dict[str, Any], language: Language) -> Iterable[list[Cell]]:
    blocks = [(label("judge_and_rules", language), entry["judge_and_rules"]["answers"])]
    blocks += [
        (f"{label('swap', language)} / {judge} / {label(name, language)}", item)
        for judge, items in entry["swap"].items() for name, item in items.items()
    ]  # fmt: skip
    blocks += [
        (f"{label('judges', language)} / {pair} / {label(name, language)}", item)
        for pair, items in entry["judges"].items() for name, item in items.items()
    ]  # fmt: skip
    yield [HEADING + label("agreement", language), label("agreement", language), label("kappa", language),
           label("base_rates", language), "", label("n", language)]  # fmt: skip
    for name, item in blocks:
        rates = percent(item["first_yes"]), percent(item["second_yes"])
        yield [name, percent(item["agreement"]), item["kappa"], *rates, item["n"]]
