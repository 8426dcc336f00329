"""One way for a process to be asked to end: SIGTERM and SIGINT set an event, the second one kills."""

from __future__ import annotations

import signal
import threading
from types import FrameType


class Shutdown:
    """`requested` is set at the first SIGTERM or SIGINT; the default action is restored for the next."""

    def __init__(self) -> None:
        self.requested = threading.Event()

    def install(self) -> Shutdown:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)
        return self

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        self.requested.set()
