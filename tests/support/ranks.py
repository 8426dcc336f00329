"""Runs a script as the ranks of one learner: one process a rank, gloo on loopback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("protos", "services", "trainer", "evaluator", "cli", "tests")


def rank_environments(ranks: int) -> list[dict[str, str]]:
    """The environment of each rank, as launchers set it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = os.environ | {
        "PYTHONPATH": os.pathsep.join(str(ROOT / folder) for folder in FOLDERS),
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }
    return [shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]


def run_ranks(script: Path, ranks: int, *arguments: str, timeout_s: float = 240) -> None:
    """Runs `script` on every rank; the first that fails fails the test with its output, and none is left behind."""
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for environment in rank_environments(ranks)
    ]
    try:
        for rank, process in enumerate(processes):
            output, _ = process.communicate(timeout=timeout_s)
            assert process.returncode == 0, f"rank {rank} ended with {process.returncode}:\n{output[-4000:]}"
    finally:
        for process in processes:
            process.kill()
            process.wait()
