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

#: Points of a line of text, and of the highest row that the format allows.
LINE_POINTS, MAX_POINTS = 15.0, 405.0
_A3 = 8


class Percent(float):
    """A share, shown as a percentage."""


Cell = str | float | int | Percent | None


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
        self._bold = Font(name="Calibri", size=11, bold=True)
        self._top = Alignment(vertical="top", wrap_text=True)
        self._right = Alignment(vertical="top", wrap_text=True, horizontal="right")
        self._taken: set[str] = set()
        self.language = language

    def sheet(
        self, name: str, widths: Sequence[float], header: Sequence[str] | None, rows: Iterable[list[Cell]]
    ) -> None:
        """Adds a sheet; a header stays in view. More rows than a sheet can hold go on in a further one."""
        from openpyxl.utils import get_column_letter
        from openpyxl.worksheet.properties import PageSetupProperties

        sheet: Any = None
        count = 0
        for row in self._or_one(rows):
            if sheet is None or count >= MAX_ROWS:
                sheet = self._book.create_sheet(sheet_name(name, self._taken))
                # On paper a sheet is as wide as a page, however many pages it is long.
                sheet.page_setup.orientation, sheet.page_setup.paperSize = "landscape", _A3
                sheet.page_setup.fitToHeight = 0
                sheet.sheet_properties.pageSetUpPr = PageSetupProperties(fitToPage=True)
                for index, width in enumerate(widths, 1):
                    sheet.column_dimensions[get_column_letter(index)].width = width
                count = 0
                if header:
                    # Bold words wrap sooner than their letters tell.
                    narrow = [0.7 * width for width in widths]
                    sheet.freeze_panes = "A2"
                    self._append(sheet, 1, [self._made(sheet, text, bold=True) for text in header], header, narrow)
            if row is not None:
                count += 1
                bold = len(row) > 0 and isinstance(row[0], str) and row[0].startswith(HEADING)
                cells = [self._made(sheet, value, bold=bold, right=bold and at > 0) for at, value in enumerate(row)]
                self._append(sheet, count + bool(header), cells, row, widths)

    @staticmethod
    def _append(sheet: Any, number: int, cells: list[Any], values: Sequence[Cell], widths: Sequence[float]) -> None:
        """Adds a row that is high enough for its longest text: programs do not all grow rows by themselves."""
        lines = max((_lines(value, width) for value, width in zip(values, widths, strict=False)), default=1)
        if lines > 1:
            sheet.row_dimensions[number].height = min(lines * LINE_POINTS, MAX_POINTS)
        sheet.append(cells)
        sheet.row_dimensions.pop(number, None)

    @staticmethod
    def _or_one(rows: Iterable[list[Cell]]) -> Iterable[list[Cell] | None]:
        """The rows, or one None so that an empty sheet still gets its header."""
        empty = True
        for row in rows:
            empty = False
            yield row
        if empty:
            yield None

    def _made(self, sheet: Any, value: Cell, *, bold: bool, right: bool = False) -> Any:
        cell = self._cell(sheet)
        if isinstance(value, str):
            value = clean(value.removeprefix(HEADING), self.language)
            cell.value = value
            # openpyxl takes text that begins with "=" for a formula unless it is told otherwise.
            cell.data_type = "s"
            cell.alignment = self._right if right else self._top
        else:
            cell.value = value
        if isinstance(value, float):
            cell.number_format = "0.0%" if isinstance(value, Percent) else "0.000"
        if bold:
            cell.font = self._bold
        return cell

    def save(self, path: Path) -> None:
        self._book.save(path)


def _lines(value: Cell, width: float) -> int:
    """Lines of a text in a column so wide; wide characters take two places."""
    if not isinstance(value, str):
        return 1
    lines = 0
    for line in value[:4000].split("\n"):
        places = len(line) + sum(char >= "\u1100" for char in line)
        lines += max(1, -(-places // max(1, int(width) - 2)))
    return lines


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
    book.sheet(label("summary", language), (44, 12, 12, 12, 12, 12, 12), None, _summary_rows(summary, language))
    measures = [*JUDGED, *extra, *RULED]
    header = [
        label(name, language)
        for name in ("id", "status", *measures, "gold_a", "extracted_a", "gold_b", "extracted_b", "judge_reason",
                     "unscored", "prompt", "output")
    ]  # fmt: skip
    widths = (18, 11, *(11 for _ in measures), 11, 11, 11, 11, 32, 26, 50, 80)
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
    write_bad_rows(book, bad)
    book.save(path)


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
        yield [label("ratio", language), value, ratio["low"], ratio["high"], None, ratio["n"], None]
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
