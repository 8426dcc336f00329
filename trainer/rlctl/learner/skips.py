"""Optimizer steps that are left out because their gradient is not finite."""

from __future__ import annotations

import logging

from rlctl.core.errors import FutileError
from rlctl.learner import distributed

logger = logging.getLogger(__name__)

#: So many in a row, and no later one will be better.
MOST = 10


class Skips:
    """Counts them; a single one is an outlier, a row of them is a model or a rate gone wrong."""

    def __init__(self) -> None:
        self._in_a_row = 0

    def note(self, skipped: bool) -> None:
        """Of one optimizer step, the same on every rank. Raises FutileError after `MOST` in a row."""
        self._in_a_row = self._in_a_row + 1 if skipped else 0
        if skipped and distributed.rank() == 0:
            logger.warning("left out an optimizer step: its gradient is not finite (%d in a row)", self._in_a_row)
        if self._in_a_row >= MOST:
            raise FutileError(
                f"{MOST} optimizer steps in a row had a gradient that is not finite, so that nothing is learnt any "
                "more. Look at the data and the rewards and launch again, which goes on from the last checkpoint, or "
                "begin a new run with a lower optimizer.lr.",
                reason="GRADIENT_NOT_FINITE",
            )
