"""Lines of progress of what is answered one by one."""

from __future__ import annotations

import time
from collections.abc import Callable

from rlctl.clients.answers import AnswerFile

BEAT_S = 10.0


class Progress:
    """A line now and then, and one at the end."""

    def __init__(self, what: str, file: AnswerFile, say: Callable[[str], None]) -> None:
        self._what = what
        self._say = say
        self._left = len(file.missing)
        self._total = file.questions
        self._before = self._total - self._left
        self._began = self._said = time.monotonic()

    def mark(self) -> None:
        """One more is answered."""
        self._left -= 1
        now = time.monotonic()
        if now - self._said >= BEAT_S:
            self._said = now
            done = self._total - self._left
            seconds = (now - self._began) / (done - self._before) * self._left
            self._say(f"{self._what} {done} of {self._total}, {seconds:.0f} s left")

    def end(self) -> None:
        kept = f" ({self._before} of them before)" if self._before else ""
        self._say(f"{self._what} {self._total}{kept} in {time.monotonic() - self._began:.0f} s")
