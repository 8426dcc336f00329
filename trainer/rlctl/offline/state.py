"""What a checkpoint of an offline trainer holds beside the learner's own files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rlctl.trainer.checkpoint import Checkpoints

#: Folder of the learner's files below a checkpoint.
LEARNER = "learner"


@dataclass(frozen=True)
class OfflineState:
    """After `step` steps."""

    step: int
    cursor: dict[str, Any]
    measured: dict[str, float] | None
    """The last held-out measures."""
    unwritten: dict[str, list[float]]
    """Metrics since the last row of metrics.jsonl."""
    seconds: float
    fence: int = 0
    """A run has one launcher at a time: its lock is the fence."""


class OfflineCheckpoints(Checkpoints[OfflineState]):
    """The checkpoints of a run."""

    state_type = OfflineState
