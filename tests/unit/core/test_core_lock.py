"""Two commands on one output file: the second is refused, and a killed one leaves nothing in the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rlctl.core.errors import ConfigError, FailedPreconditionError
from rlctl.core.lock import only_writer

HOLD = """
import sys, time
from pathlib import Path
from rlctl.core.lock import only_writer
with only_writer(Path(sys.argv[1]), "wait"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_the_other_is_named_and_its_death_lets_go(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    other = tmp_path / "link.jsonl"
    other.symlink_to(path)
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            for name in (path, other):
                with (
                    pytest.raises(FailedPreconditionError, match=rf"by process {holder.pid} on .*: wait for it"),
                    only_writer(name, "wait for it"),
                ):
                    pytest.fail("two writers")
        finally:
            os.kill(holder.pid, signal.SIGKILL)
    assert (tmp_path / "out.jsonl.lock").exists()
    with only_writer(path, "wait"):
        assert str(os.getpid()) in (tmp_path / "out.jsonl.lock").read_text()
    assert [each.name for each in tmp_path.iterdir()] == ["link.jsonl"]


def test_a_lock_that_its_holder_removed_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between opening the lock and taking it, the holder lets go: a third could make a new one, so it is made anew."""
    path = tmp_path / "out.jsonl"
    opened: list[int] = []
    real = os.open

    def late(*arguments: object, **named: object) -> int:
        descriptor = real(*arguments, **named)
        if not opened:
            (tmp_path / "out.jsonl.lock").unlink()
        opened.append(descriptor)
        return descriptor

    monkeypatch.setattr(os, "open", late)
    with only_writer(path, "wait"):
        assert len(opened) == 2
        assert (tmp_path / "out.jsonl.lock").exists()


def test_where_no_file_can_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="is a folder: name a file"), only_writer(tmp_path, "wait"):
        pytest.fail("a folder")
    with (
        pytest.raises(ConfigError, match=r"out.jsonl cannot be written \(.*File exists\): name another file"),
        only_writer(tmp_path / "file" / "out.jsonl", "wait"),
    ):
        pytest.fail("a file is no folder")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    with only_writer(tmp_path / "new" / "folder" / "out.jsonl", "wait"):
        assert (tmp_path / "new" / "folder").is_dir()
