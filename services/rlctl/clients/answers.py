"""Answers in a file that grows as they come, so that a job that was killed asks for nothing twice.

questions ─► not in the file yet ─► ask (so many at once) ─► append ─► all there: in the questions' order
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from rlctl.core.durable import write_atomic
from rlctl.core.errors import ConfigError

Row = dict[str, Any]
#: Column with the key of the request that a row answers.
KEY = "request"


class AnswerFile:
    """One JSON object a line. A question has a known number of rows, which count once all of them are whole."""

    def __init__(self, path: Path, wanted: Mapping[str, int]) -> None:
        """`wanted`: rows of each question by its key, in the order in which the finished file has them.

        What a kill left half written is dropped. Raises ConfigError where the file holds anything else.
        """
        self.path = path
        self._wanted = wanted
        self._rows = self._read()

    @property
    def questions(self) -> int:
        """How many there are, answered or not."""
        return len(self._wanted)

    @property
    def missing(self) -> list[str]:
        """Keys of the questions without an answer, in their order."""
        return [key for key in self._wanted if key not in self._rows]

    def add(self, key: str, rows: list[Row]) -> None:
        """Appends the answer to a question; it is in the file when this returns."""
        assert len(rows) == self._wanted[key]
        rows = [{KEY: key, **row} for row in rows]
        with self.path.open("ab") as file:
            file.write(_lines(rows))
        self._rows[key] = rows

    def finish(self) -> list[Row]:
        """All rows in the order of the questions; the file has them so, too."""
        assert not self.missing
        rows = [row for key in self._wanted for row in self._rows[key]]
        write_atomic(self.path, _lines(rows))
        return rows

    def _read(self) -> dict[str, list[Row]]:
        if not self.path.exists():
            return {}
        data = self.path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        found: dict[str, list[Row]] = {}
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            if not isinstance(row, dict) or row.get(KEY) not in self._wanted:
                raise ConfigError(
                    f"{self.path}:{number} is no answer to a prompt of this job with these settings: name another "
                    "file, remove this one, or use the settings it was begun with"
                )
            found.setdefault(row[KEY], []).append(row)
        kept = {key: rows for key, rows in found.items() if len(rows) == self._wanted[key]}
        if len(whole) < len(data) or len(kept) < len(found):
            write_atomic(self.path, _lines([row for rows in kept.values() for row in rows]))
        return kept


async def answer(
    file: AnswerFile,
    ask: Callable[[str], Awaitable[list[Row]]],
    *,
    at_once: int,
    on_answer: Callable[[], None] = lambda: None,
) -> list[Row]:
    """Asks for what the file lacks, `at_once` questions at a time, and gives all rows.

    `ask` gives the rows of one key. The first error ends it; what was answered by then is in the file.
    """
    keys = iter(file.missing)

    async def work() -> None:
        for key in keys:
            file.add(key, await ask(key))
            on_answer()

    workers = [asyncio.ensure_future(work()) for _ in range(min(at_once, len(file.missing)))]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    return file.finish()


def _lines(rows: list[Row]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
