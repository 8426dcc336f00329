"""What the trainer tells of itself, and what it is asked to do: shared by its main thread and its service."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from rlctl.trainer.progress import Progress
from rlctl.v1 import trainer_pb2


@dataclass
class Controls:
    """Wishes from outside; the main thread looks at them between steps and while it waits."""

    stop: threading.Event = field(default_factory=threading.Event)
    resume: threading.Event = field(default_factory=threading.Event)
    checkpoint: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.resume.set()


class Status:
    """A snapshot under a lock: the main thread writes it, the service reads it."""

    def __init__(self, run: str, total_steps: int, progress: Progress) -> None:
        self._lock = threading.Condition()
        self._progress = progress
        self._message = trainer_pb2.GetStatusResponse(
            run=run, total_steps=total_steps, state=trainer_pb2.TRAINER_STATE_STARTING
        )

    def update(self, metrics: Mapping[str, float] | None = None, **fields: object) -> None:
        """Sets fields of GetStatusResponse; `metrics` replaces the map."""
        with self._lock:
            for name, value in fields.items():
                setattr(self._message, name, value)
            if metrics is not None:
                self._message.metrics.clear()
                self._message.metrics.update(metrics)
            self._message.ledger.CopyFrom(self._progress.ledger.message())
            self._lock.notify_all()

    def read(self) -> trainer_pb2.GetStatusResponse:
        with self._lock:
            copy = trainer_pb2.GetStatusResponse()
            copy.CopyFrom(self._message)
            return copy
