"""issued = trained + dropped + pending, counted apart from one another."""

from __future__ import annotations

import pytest

from rlctl.trainer.journal import StepRecords
from rlctl.trainer.ledger import Ledger
from rlctl.v1 import journal_pb2, rollout_pb2


def task(prompt: int, attempt: int = 0) -> rollout_pb2.PromptTask:
    return rollout_pb2.PromptTask(id=rollout_pb2.GroupId(run="r", epoch=0, prompt=prompt, attempt=attempt))


def test_groups_move_from_pending_to_trained_and_dropped():
    ledger = Ledger()
    ledger.issue([task(0), task(1), task(2), task(1, attempt=1)])
    assert ledger.counts() == {"issued": 4, "trained": 0, "dropped": 0, "pending": 4}
    group = rollout_pb2.RolloutGroup(task=task(0)).SerializeToString()
    drops = [
        journal_pb2.DroppedGroup(id=task(1).id, reason="REISSUED"),
        journal_pb2.DroppedGroup(id=task(2).id, reason="REWARD_FAILED"),
    ]
    ledger.settle(journal_pb2.SettledStep(step=0, groups=[group], dropped=drops))
    assert ledger.counts() == {"issued": 4, "trained": 1, "dropped": 2, "pending": 1}
    assert ledger.dropped == {"REISSUED": 1, "REWARD_FAILED": 1}
    assert ledger.balanced


def test_a_group_that_was_not_issued_cannot_be_settled():
    ledger = Ledger()
    ledger.issue([task(0)])
    with pytest.raises(KeyError, match="r/0/7/0"):
        ledger.settle(journal_pb2.SettledStep(dropped=[journal_pb2.DroppedGroup(id=task(7).id, reason="X")]))


def test_a_checkpoint_and_the_journal_give_the_ledger_back():
    ledger = Ledger()
    ledger.issue([task(0)])
    ledger.settle(journal_pb2.SettledStep(groups=[rollout_pb2.RolloutGroup(task=task(0)).SerializeToString()]))
    ledger.issue([task(1), task(2)])
    restored = Ledger(**ledger.state())
    restored.apply(StepRecords(1, [task(1), task(2)], None))
    assert restored.counts() == ledger.counts() == {"issued": 3, "trained": 1, "dropped": 0, "pending": 2}
