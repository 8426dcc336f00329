"""Nothing of a service survives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from rlctl.launch import sweep
from rlctl.launch.process_actor import GUARD

PROGRAM = """
import subprocess, sys, time
children = [subprocess.Popen(["sleep", "600"], start_new_session=apart) for apart in (True, False)]
sys.stderr.write(f"{children[0].pid} {children[1].pid}\\n")
time.sleep(600)
"""


def start(log: Path) -> tuple[subprocess.Popen[bytes], int, list[int]]:
    """(guard, service, its children)"""
    with log.open("wb") as stderr:
        guard = subprocess.Popen(
            [sys.executable, "-I", "-S", GUARD, sys.executable, "-c", PROGRAM],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, start_new_session=True,
        )  # fmt: skip
    assert guard.stdout is not None
    word, pid = guard.stdout.readline().split()
    assert word == b"started"
    deadline = time.monotonic() + 20
    while not log.read_text().endswith("\n"):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return guard, int(pid), [int(child) for child in log.read_text().split()]


def alive(pids: list[int]) -> list[int]:
    def is_alive(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
        except FileNotFoundError:
            return False

    return [pid for pid in pids if is_alive(pid)]


def end(guard: subprocess.Popen[bytes]) -> bytes:
    assert guard.stdout is not None
    said = guard.stdout.readline()
    guard.wait(10)
    return said


def test_a_closed_stdin_ends_the_service_and_all_below_it(tmp_path: Path) -> None:
    guard, service, children = start(tmp_path / "log")
    assert alive([service, *children]) == [service, *children]
    assert guard.stdin is not None
    guard.stdin.close()
    assert end(guard) == b"exit -9\n"
    assert alive([service, *children]) == []


def test_a_service_that_dies_takes_its_orphans_along(tmp_path: Path) -> None:
    guard, service, children = start(tmp_path / "log")
    os.kill(service, signal.SIGKILL)
    assert end(guard) == b"exit -9\n"
    assert alive(children) == []


def test_a_signal_goes_to_the_service_alone_and_its_end_is_told(tmp_path: Path) -> None:
    guard, _, children = start(tmp_path / "log")
    assert guard.stdin is not None
    guard.stdin.write(b"signal 15\n")
    guard.stdin.flush()
    assert end(guard) == b"exit -15\n"
    assert alive(children) == []


def test_a_killed_guard_takes_the_service_and_the_sweep_the_rest(tmp_path: Path) -> None:
    os.environ[sweep.PROCESS] = f"test/{os.getpid()}"
    try:
        guard, service, children = start(tmp_path / "log")
    finally:
        mark = os.environ.pop(sweep.PROCESS)
    guard.kill()
    guard.wait()
    assert sweep.sweep(sweep.PROCESS, mark) == []
    assert alive([service, *children]) == []


def test_the_sweep_leaves_processes_without_the_mark() -> None:
    bystander = subprocess.Popen(["sleep", "600"], env={sweep.LAUNCH: "another"})
    try:
        assert sweep.marked(sweep.LAUNCH, "another") == [bystander.pid]
        assert sweep.sweep(sweep.LAUNCH, "other") == []
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()
