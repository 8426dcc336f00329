"""The journal keeps what was flushed, cuts a torn end, and refuses a damaged middle."""

from __future__ import annotations

import pytest

from rlctl.core.errors import DataLossError
from rlctl.trainer.journal import Journal
from rlctl.v1 import journal_pb2, rollout_pb2


def task(prompt: int, attempt: int = 0) -> rollout_pb2.PromptTask:
    return rollout_pb2.PromptTask(id=rollout_pb2.GroupId(run="r", epoch=0, prompt=prompt, attempt=attempt))


def settled(step: int, *prompts: int) -> journal_pb2.SettledStep:
    groups = [rollout_pb2.RolloutGroup(task=task(prompt)).SerializeToString() for prompt in prompts]
    return journal_pb2.SettledStep(step=step, groups=groups)


def test_records_come_back_as_written(tmp_path):
    journal = Journal(tmp_path / "journal")
    journal.append_issued(3, [task(0), task(1)])
    journal.append_issued(3, [task(1, attempt=1)])
    journal.append_settled(settled(3, 0, 1))
    records = Journal(tmp_path / "journal").read(3)
    assert [(t.id.prompt, t.id.attempt) for t in records.issued] == [(0, 0), (1, 0), (1, 1)]
    assert records.settled == settled(3, 0, 1)
    assert journal.read(4).settled is None
    assert journal.read(4).issued == []


@pytest.mark.parametrize("cut", [1, 5, 9, 20])
def test_a_torn_last_record_is_cut_off_and_written_over(tmp_path, cut):
    journal = Journal(tmp_path)
    journal.append_issued(0, [task(0)])
    path = tmp_path / "step-00000000.journal"
    sound = path.stat().st_size
    journal.append_settled(settled(0, 0))
    with path.open("r+b") as file:
        file.truncate(min(sound + cut, path.stat().st_size - 1))
    again = Journal(tmp_path)
    assert again.read(0).settled is None
    again.append_settled(settled(0, 0))
    assert again.read(0).settled == settled(0, 0)


def test_a_damaged_record_before_others_is_refused_by_name(tmp_path):
    journal = Journal(tmp_path)
    journal.append_issued(0, [task(0)])
    journal.append_settled(settled(0, 0))
    path = tmp_path / "step-00000000.journal"
    data = bytearray(path.read_bytes())
    data[10] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(DataLossError, match=r"step-00000000.journal.*byte 0"):
        journal.read(0)


def test_pruning_keeps_the_steps_from_the_one_named(tmp_path):
    journal = Journal(tmp_path)
    for step in range(5):
        journal.append_issued(step, [task(step)])
    journal.prune(3)
    assert journal.steps() == [3, 4]
