"""The ledger: issued = trained + dropped + pending, in prompt groups, at every moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from rlctl.bus.ids import group_key
from rlctl.trainer.journal import StepRecords
from rlctl.v1 import journal_pb2, rollout_pb2, trainer_pb2


class Ledger:
    """Counts groups by what became of them; the pending ones are known by name.

    A group that is issued again is a new group (its attempt differs): the old one is dropped with a reason.
    """

    def __init__(self, issued: int = 0, trained: int = 0, dropped: dict[str, int] | None = None) -> None:
        self.issued = issued
        self.trained = trained
        self.dropped: Counter[str] = Counter(dropped or {})
        self.pending: dict[str, rollout_pb2.PromptTask] = {}

    @property
    def balanced(self) -> bool:
        return self.issued == self.trained + self.dropped.total() + len(self.pending)

    def issue(self, tasks: Iterable[rollout_pb2.PromptTask]) -> None:
        for task in tasks:
            self.issued += 1
            self.pending[group_key(task.id)] = task

    def settle(self, settled: journal_pb2.SettledStep) -> None:
        """Moves a step's groups from pending to trained and dropped."""
        for data in settled.groups:
            group = rollout_pb2.RolloutGroup.FromString(data)
            del self.pending[group_key(group.task.id)]
            self.trained += 1
        for drop in settled.dropped:
            del self.pending[group_key(drop.id)]
            self.dropped[drop.reason] += 1

    def apply(self, records: StepRecords) -> None:
        """Takes in what the journal says of a step."""
        self.issue(records.issued)
        if records.settled is not None:
            self.settle(records.settled)

    def state(self) -> dict[str, Any]:
        """For a checkpoint: the settled groups; the pending ones stand in the journal and are issued to it again."""
        return {"issued": self.issued - len(self.pending), "trained": self.trained, "dropped": dict(self.dropped)}

    def message(self) -> trainer_pb2.Ledger:
        return trainer_pb2.Ledger(
            issued=self.issued, trained=self.trained, dropped=self.dropped.total(), pending=len(self.pending)
        )

    def counts(self) -> dict[str, int]:
        return {
            "issued": self.issued,
            "trained": self.trained,
            "dropped": self.dropped.total(),
            "pending": len(self.pending),
        }
