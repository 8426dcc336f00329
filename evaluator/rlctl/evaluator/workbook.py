"""The workbook: a summary, a sheet a data set, what is unscored and why, and where judge and rules differ.

Text cells are text: never a formula, never a character that XML forbids, and marked where Excel's limit cuts them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from rlctl.evaluator.labels import Language, label
from rlctl.evaluator.records import BadRow
from rlctl.evaluator.rows import JUDGED, RULED, Row
from rlctl.evaluator.summary import TOTAL, differs

#: Characters of a cell in the file format.
MAX_CELL = 32_767
#: Rows of a sheet; what is over goes to a further sheet.
MAX_ROWS = 1_000_000

_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_SHEET_NAME = re.compile(r"[\[\]:*?/\\\x00-\x1f']")

Cell = str | float | int | None


def clean(text: str, language: Language) -> str:
    """Text as a cell can hold it."""
    text = _FORBIDDEN.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    # `_x0041_` in a cell means the letter A to Excel: its underscore is written as a code.
    text = re.sub(r"_(?=x[0-9A-Fa-f]{4}_)", "_x005F_", text)
    if len(text) > MAX_CELL:
        mark = label("cut", language)
        text = text[: MAX_CELL - len(mark)] + mark
    return text


def sheet_name(name: str, taken: set[str]) -> str:
    """A legal sheet name, unique without regard to case, at most 31 characters."""
    base = _SHEET_NAME.sub("_", _FORBIDDEN.sub("", name)).strip() or "data"
    base = base if base.lower() != "history" else "history_"
    candidate, number = base[:31], 2
    while candidate.lower() in taken:
        suffix = f" ({number})"
        candidate, number = base[: 31 - len(suffix)] + suffix, number + 1
    taken.add(candidate.lower())
    return candidate


class Workbook:
    """Writes sheets row by row; memory does not grow with the rows."""

    def __init__(self, language: Language) -> None:
        from openpyxl import Workbook as Book
        from openpyxl.cell import WriteOnlyCell
        from openpyxl.styles import Alignment, Font

        self._book = Book(write_only=True)
        self._cell: Callable[..., Any] = WriteOnlyCell
        self._bold, self._top = Font(bold=True), Alignment(vertical="top", wrap_text=True)
        self._taken: set[str] = set()
        self.language = language

    def sheet(
        self, name: str, widths: Sequence[float], header: Sequence[str] | None, rows: Iterable[list[Cell]]
    ) -> None:
        """Adds a sheet; a header stays in view. More rows than a sheet can hold go on in a further one."""
        from openpyxl.utils import get_column_letter

        sheet: Any = None
        count = 0
        for row in self._or_one(rows):
            if sheet is None or count >= MAX_ROWS:
                sheet = self._book.create_sheet(sheet_name(name, self._taken))
                for index, width in enumerate(widths, 1):
                    sheet.column_dimensions[get_column_letter(index)].width = width
                if header:
                    sheet.freeze_panes = "A2"
                    sheet.append([self._made(sheet, text, bold=True) for text in header])
                count = 0
            if row is not None:
                bold = len(row) > 0 and isinstance(row[0], str) and row[0].startswith(HEADING)
                sheet.append([self._made(sheet, value, bold=bold) for value in row])
                count += 1

    @staticmethod
    def _or_one(rows: Iterable[list[Cell]]) -> Iterable[list[Cell] | None]:
        """The rows, or one None so that an empty sheet still gets its header."""
        empty = True
        for row in rows:
            empty = False
            yield row
        if empty:
            yield None

    def _made(self, sheet: Any, value: Cell, *, bold: bool) -> Any:
        cell = self._cell(sheet)
        if isinstance(value, str):
            value = clean(value.removeprefix(HEADING), self.language)
            cell.value = value
            # openpyxl takes text that begins with "=" for a formula unless it is told otherwise.
            cell.data_type = "s"
            cell.alignment = self._top
        else:
            cell.value = value
        if isinstance(value, float):
            cell.number_format = "0.000"
        if bold:
            cell.font = self._bold
        return cell

    def save(self, path: Path) -> None:
        self._book.save(path)


#: Marks a row of the summary sheet as a heading.
HEADING = "\ue001"


def write_workbook(
    path: Path,
    summary: dict[str, Any],
    rows: Sequence[Row],
    bad: Sequence[BadRow],
    extra: Sequence[str],
    language: Language,
) -> None:
    """Writes the whole workbook of a pair evaluation."""
    book = Workbook(language)
    book.sheet(label("summary", language), (44, 12, 12, 12, 12, 12, 16), None, _summary_rows(summary, bad, language))
    measures = [*JUDGED, *extra, *RULED]
    header = [
        label(name, language)
        for name in ("id", "status", *measures, "gold_a", "extracted_a", "gold_b", "extracted_b", "judge_reason",
                     "unscored", "prompt", "output")
    ]  # fmt: skip
    widths = (18, 10, *(11 for _ in measures), 10, 12, 10, 12, 40, 28, 60, 80)
    for name in dict.fromkeys(row.record.dataset for row in rows):
        book.sheet(name, widths, header, (_row(row, measures, language) for row in rows if row.record.dataset == name))
    book.sheet(
        label("unscored", language), (18, 24, 80),
        [label("id", language), label("measure", language), label("reason", language)],
        ([row.record.id, label(name, language), row.reasons.get(name, "")]
         for row in rows for name, value in row.measures.items() if value is None),
    )  # fmt: skip
    book.sheet(
        label("different", language), widths, header, (_row(row, measures, language) for row in rows if differs(row))
    )
    book.save(path)


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


def _summary_rows(summary: dict[str, Any], bad: Sequence[BadRow], language: Language) -> Iterable[list[Cell]]:
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
            yield [label(measure, language), share["value"], share["low"], share["high"], share["yes"], share["n"],
                   share["unscored"]]  # fmt: skip
        ratio = entry["ratio"]
        value = ratio["value"] if ratio["value"] is not None else "n/a"
        yield [label("ratio", language), value, ratio["low"], ratio["high"], None, ratio["n"], None]
        yield from _agreements(entry, language)
        yield [label("gold", language), ", ".join(f"{status}: {count}" for status, count in entry["gold"].items())]
    if bad:
        yield []
        yield [HEADING + label("bad_rows", language), label("line", language), label("reason", language)]
        for row in bad:
            yield [row.file, row.line, row.reason]


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
        yield [name, item["agreement"], item["kappa"], item["first_yes"], item["second_yes"], item["n"]]
