"""When a failed process is started again, and when the run ends instead."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

#: Exit codes of what no restart mends, and how it is said.
FINAL_CODES = {2: "its settings are wrong", 3: "starting it again would not help"}
#: A process that ends by itself with an error, so soon after its start, so many times in a row, will do it again.
HOPELESS_AFTER = 3
SHORT_LIFE_S = 60.0
FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 30.0


class GiveUp(Exception):
    """The run should end; the text says why."""


class RestartPolicy:
    """Counts failures; `clock` gives seconds."""

    def __init__(self, restarts: int, window_s: float, clock: Callable[[], float]) -> None:
        self._restarts = restarts
        self._window_s = window_s
        self._clock = clock
        self._recent: deque[float] = deque()
        self._short_lives: dict[str, int] = {}
        self._errors: dict[str, int] = {}
        self.total = 0

    def delay(self, name: str, code: int, lived_s: float) -> float:
        """Seconds to wait before `name` starts again, after it ended with `code` (negative: by a signal).

        Doubles with every short life in a row. Raises GiveUp when the run should end.
        """
        now = self._clock()
        short = lived_s < SHORT_LIFE_S
        self._short_lives[name] = self._short_lives.get(name, 0) + 1 if short else 0
        self._errors[name] = self._errors.get(name, 0) + 1 if short and code > 0 else 0
        if code in FINAL_CODES:
            raise GiveUp(FINAL_CODES[code])
        if self._errors[name] >= HOPELESS_AFTER:
            raise GiveUp(f"{HOPELESS_AFTER} starts in a row ended with an error")
        while self._recent and now - self._recent[0] > self._window_s:
            self._recent.popleft()
        if len(self._recent) >= self._restarts:
            raise GiveUp(f"more than {self._restarts} restarts within {self._window_s:.0f} s (cluster.restarts)")
        self._recent.append(now)
        self.total += 1
        return min(FIRST_DELAY_S * 2.0 ** max(self._short_lives[name] - 1, 0), LONGEST_DELAY_S)
