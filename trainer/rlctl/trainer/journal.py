"""The journal: what was issued and what was trained on, on the run's own storage. It is the truth.

One file a training step, `step-00000012.journal`, a sequence of frames:

    u32 length | u32 crc32 of the payload | payload (a JournalRecord)

A frame is fsynced before anything that follows from it happens: tasks are published after their
`issued` record, messages are acked and trained on after their step's `settled` record. A torn last
frame (the crash came while it was written) is cut off when the file is opened again: nothing had
followed from it.
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from rlctl.core.durable import fsync_path
from rlctl.core.errors import DataLossError
from rlctl.v1 import journal_pb2, rollout_pb2

_HEAD = struct.Struct("<II")
_NAME = re.compile(r"step-(\d{8})\.journal")


class StepRecords(NamedTuple):
    """What the journal says of one step."""

    step: int
    issued: list[rollout_pb2.PromptTask]
    settled: journal_pb2.SettledStep | None


class Journal:
    """Appends to and reads the journal of a run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        fsync_path(folder.parent)

    def append_issued(self, step: int, tasks: Iterable[rollout_pb2.PromptTask]) -> None:
        """Records tasks, before they are published."""
        self._append(step, journal_pb2.JournalRecord(issued=journal_pb2.IssuedGroups(step=step, tasks=tasks)))

    def append_settled(self, settled: journal_pb2.SettledStep) -> None:
        """Records a step's rollouts, before they are acked and trained on."""
        self._append(settled.step, journal_pb2.JournalRecord(settled=settled))

    def steps(self) -> list[int]:
        """Steps that have a file, ascending."""
        found = (_NAME.fullmatch(path.name) for path in self._folder.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def read(self, step: int) -> StepRecords:
        """All records of a step; an absent file is a step that nothing was issued for."""
        issued: list[rollout_pb2.PromptTask] = []
        settled = None
        path = self._path(step)
        if path.exists():
            for payload in _frames(path):
                record = journal_pb2.JournalRecord.FromString(payload)
                if record.HasField("settled"):
                    settled = record.settled
                else:
                    issued.extend(record.issued.tasks)
        return StepRecords(step, issued, settled)

    def prune(self, before_step: int) -> None:
        """Deletes the files of all steps below `before_step`."""
        for step in self.steps():
            if step < before_step:
                self._path(step).unlink()

    def _path(self, step: int) -> Path:
        return self._folder / f"step-{step:08d}.journal"

    def _append(self, step: int, record: journal_pb2.JournalRecord) -> None:
        payload = record.SerializeToString(deterministic=True)
        path = self._path(step)
        new = not path.exists()
        with path.open("ab") as file:
            if not new:
                file.truncate(_sound_length(path))
            file.write(_HEAD.pack(len(payload), zlib.crc32(payload)) + payload)
            file.flush()
            os.fsync(file.fileno())
        if new:
            fsync_path(self._folder)


def _frames(path: Path) -> Iterator[bytes]:
    data = path.read_bytes()
    end = _scan(data, path)
    offset = 0
    while offset < end:
        length, _ = _HEAD.unpack_from(data, offset)
        offset += _HEAD.size
        yield data[offset : offset + length]
        offset += length


def _sound_length(path: Path) -> int:
    return _scan(path.read_bytes(), path)


def _scan(data: bytes, path: Path) -> int:
    """Length of the sound frames. Raises DataLossError when a damaged one is not the last."""
    offset = 0
    while offset + _HEAD.size <= len(data):
        length, crc = _HEAD.unpack_from(data, offset)
        payload = data[offset + _HEAD.size : offset + _HEAD.size + length]
        end = offset + _HEAD.size + length
        if len(payload) < length:
            break
        if zlib.crc32(payload) != crc:
            if end < len(data):
                raise DataLossError(
                    f"{path}: the record at byte {offset} is damaged, and others follow it. The disk or another "
                    "program changed the journal: restore the file from a copy, or start the run again with --fresh.",
                    reason="JOURNAL_DAMAGED",
                )
            break
        offset = end
    return offset
