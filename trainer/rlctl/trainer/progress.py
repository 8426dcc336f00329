"""How far a run is: everything beside the weights that a step changes."""

from __future__ import annotations

import time

from rlctl.data.cursor import PromptCursor
from rlctl.trainer.ledger import Ledger


class Progress:
    """Steps done, the place in the data, the ledger, and the KL coefficient."""

    def __init__(self, cursor: PromptCursor, beta: float) -> None:
        self.step = 0
        self.cursor = cursor
        self.ledger = Ledger()
        self.beta = beta
        self._seconds_before = 0.0
        self._begun = time.monotonic()

    def continue_from(self, seconds: float) -> None:
        """Takes over the wall time of the processes before this one."""
        self._seconds_before = seconds

    @property
    def seconds(self) -> float:
        """Wall time of the run so far, without the time between processes."""
        return self._seconds_before + time.monotonic() - self._begun
