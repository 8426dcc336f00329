"""A checkpoint is whole or not there; a damaged one is passed over; an older trainer cannot commit."""

from __future__ import annotations

import pytest

from rlctl.core.durable import check_manifest
from rlctl.core.errors import DataLossError, FencedError
from rlctl.trainer.checkpoint import CheckpointStore, RunState


def state(step: int, fence: int = 1) -> RunState:
    return RunState(step, {"taken": step}, {"issued": 0}, 0.1, "tag", fence, 1.5)


def commit(store: CheckpointStore, step: int, fence: int = 1, keep: int = 2) -> None:
    aside = store.begin(step)
    (aside / "actor").mkdir()
    (aside / "actor" / "weights.bin").write_bytes(bytes([step]) * 100)
    store.commit(aside, state(step, fence), keep)


def test_the_newest_sound_commit_is_restored(tmp_path):
    store = CheckpointStore(tmp_path)
    assert store.latest() is None
    commit(store, 3)
    commit(store, 6)
    folder, found = store.latest()
    assert (folder.name, found) == ("step-00000006", state(6))


def test_a_crash_before_the_rename_leaves_the_commit_before_it(tmp_path):
    store = CheckpointStore(tmp_path)
    commit(store, 3)
    aside = store.begin(6)
    (aside / "half").write_bytes(b"x")
    assert CheckpointStore(tmp_path).latest()[1].step == 3


@pytest.mark.parametrize("damage", ["flip", "truncate", "delete", "manifest"])
def test_a_damaged_checkpoint_is_passed_over(tmp_path, damage, caplog):
    store = CheckpointStore(tmp_path)
    commit(store, 3)
    commit(store, 6)
    weights = store.path(6) / "actor" / "weights.bin"
    if damage == "flip":
        weights.write_bytes(bytes([7]) * 100)
    elif damage == "truncate":
        weights.write_bytes(bytes([6]) * 99)
    elif damage == "delete":
        weights.unlink()
    else:
        (store.path(6) / "manifest.json").write_text("{")
    with pytest.raises(DataLossError):
        check_manifest(store.path(6))
    assert store.latest()[1].step == 3


def test_only_the_newest_are_kept(tmp_path):
    store = CheckpointStore(tmp_path)
    for step in (1, 2, 3, 4):
        commit(store, step, keep=2)
    assert store.steps() == [3, 4]


def test_a_lower_fencing_epoch_cannot_commit(tmp_path):
    store = CheckpointStore(tmp_path)
    store.claim(5)
    with pytest.raises(FencedError, match=r"epoch 5"):
        commit(store, 1, fence=4)
    with pytest.raises(FencedError):
        store.claim(4)
    commit(store, 1, fence=5)
    assert store.steps() == [1]
