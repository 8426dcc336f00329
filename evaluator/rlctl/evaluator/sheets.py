"""Writes spreadsheets row by row, in memory that does not grow with them.

Text cells are text: never a formula, never a character that XML forbids, and marked where the format's limit cuts them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rlctl.evaluator.labels import Language, label

#: UTF-16 units of a cell and of a sheet's name in the file format.
MAX_CELL, MAX_NAME = 32_767, 31
#: Rows of a sheet; what is over goes to a further sheet.
MAX_ROWS = 1_000_000

_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_SHEET_NAME = re.compile(r"[\[\]:*?/\\\x00-\x1f']")

#: Points of a line of text, and of the highest row that the format allows.
LINE_POINTS, MAX_POINTS = 15.0, 405.0
_A3 = 8


class Percent(float):
    """A share, shown as a percentage."""


#: Marks a row as a heading, at the beginning of its first cell.
HEADING = "\ue001"

Cell = str | float | int | Percent | None


def clean(text: str, language: Language) -> str:
    """Text as a cell can hold it."""
    text = _FORBIDDEN.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    if _units(text) > MAX_CELL:
        mark = label("cut", language)
        text = _cut(text, MAX_CELL - len(mark)) + mark
    return text


def _units(text: str) -> int:
    """Characters as the format counts them: one beyond U+FFFF, such as an emoji, is two."""
    return len(text.encode("utf-16-le")) // 2 if 2 * len(text) > MAX_CELL else len(text)


def _cut(text: str, units: int) -> str:
    return text[:units].encode("utf-16-le")[: 2 * units].decode("utf-16-le", "ignore")


def sheet_name(name: str, taken: set[str]) -> str:
    """A legal sheet name, unique without regard to case."""
    base = _SHEET_NAME.sub("_", _FORBIDDEN.sub("", name)).strip() or "data"
    base = base if base.lower() != "history" else "history_"
    candidate, number = _cut(base, MAX_NAME), 2
    while candidate.lower() in taken:
        suffix = f" ({number})"
        candidate, number = _cut(base, MAX_NAME - len(suffix)) + suffix, number + 1
    taken.add(candidate.lower())
    return candidate


class Workbook:
    """A workbook that is being written; use it as a context manager."""

    def __init__(self, path: Path, language: Language) -> None:
        import xlsxwriter

        self._book = xlsxwriter.Workbook(str(path), {"constant_memory": True, "strings_to_formulas": False})
        top = {"valign": "top", "text_wrap": True}
        self._text = self._book.add_format(top)
        self._bold = self._book.add_format({**top, "bold": True})
        self._right = self._book.add_format({**top, "bold": True, "align": "right"})
        self._number = self._book.add_format({"valign": "top", "num_format": "0.000"})
        self._percent = self._book.add_format({"valign": "top", "num_format": "0.0%"})
        self._whole = self._book.add_format({"valign": "top"})
        self._taken: set[str] = set()
        self.language = language

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        from xlsxwriter.exceptions import FileCreateError

        try:
            self._book.close()
        except FileCreateError as wrapped:
            raise OSError(f"the workbook cannot be written: {wrapped}") from wrapped

    def sheet(
        self, name: str, widths: Sequence[float], header: Sequence[str] | None, rows: Iterable[list[Cell]]
    ) -> None:
        """Adds a sheet; a header stays in view. More rows than a sheet can hold go on in a further one."""
        sheet = self._begun(name, widths, header)
        first = number = 1 if header else 0
        for row in rows:
            if number - first >= MAX_ROWS:
                sheet, number = self._begun(name, widths, header), first
            self._write(sheet, number, row, widths)
            number += 1

    def _begun(self, name: str, widths: Sequence[float], header: Sequence[str] | None) -> Any:
        sheet = self._book.add_worksheet(sheet_name(name, self._taken))
        # On paper a sheet is as wide as a page, however many pages it is long.
        sheet.set_landscape()
        sheet.set_paper(_A3)
        sheet.fit_to_pages(1, 0)
        for index, width in enumerate(widths):
            sheet.set_column(index, index, width)
        if header:
            sheet.freeze_panes(1, 0)
            # Bold words wrap sooner than their letters tell.
            self._set_height(sheet, 0, header, [0.7 * width for width in widths])
            for index, text in enumerate(header):
                sheet.write_string(0, index, clean(text, self.language), self._bold)
        return sheet

    def _write(self, sheet: Any, number: int, row: list[Cell], widths: Sequence[float]) -> None:
        self._set_height(sheet, number, row, widths)
        heading = bool(row) and isinstance(row[0], str) and row[0].startswith(HEADING)
        for index, value in enumerate(row):
            if isinstance(value, str):
                style = (self._right if index else self._bold) if heading else self._text
                sheet.write_string(number, index, clean(value.removeprefix(HEADING), self.language), style)
            elif isinstance(value, Percent):
                sheet.write_number(number, index, value, self._percent)
            elif isinstance(value, float):
                sheet.write_number(number, index, value, self._number)
            elif value is not None:
                sheet.write_number(number, index, value, self._whole)

    @staticmethod
    def _set_height(sheet: Any, number: int, row: Sequence[Cell], widths: Sequence[float]) -> None:
        """High enough for the row's longest text: programs do not all grow rows by themselves."""
        lines = max((_lines(value, width) for value, width in zip(row, widths, strict=False)), default=1)
        if lines > 1:
            sheet.set_row(number, min(lines * LINE_POINTS, MAX_POINTS))


def _lines(value: Cell, width: float) -> int:
    """Lines of a text in a column so wide; wide characters take two places."""
    if not isinstance(value, str):
        return 1
    lines = 0
    for line in value[:4000].split("\n"):
        # A wide character has three bytes in UTF-8: the mean of bytes and characters counts it twice.
        places = (len(line) + len(line.encode("utf-8", "replace"))) // 2
        lines += max(1, -(-places // max(1, int(width) - 2)))
    return lines
