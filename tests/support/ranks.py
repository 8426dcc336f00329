"""Runs a script as the ranks of one learner: one process a rank, gloo on loopback."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rlctl.core.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("protos", "services", "trainer", "evaluator", "cli", "tests")


def rank_environments(ranks: int) -> list[dict[str, str]]:
    """The environment of each rank, as launchers set it."""
    port = free_port()
    shared = os.environ | {
        "PYTHONPATH": os.pathsep.join(str(ROOT / folder) for folder in FOLDERS),
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }
    return [shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]


def run_ranks(script: Path, ranks: int, *arguments: str, timeout_s: float = 280) -> None:
    """Runs `script` on every rank; the first that fails fails the test with its output, and none is left behind."""
    with tempfile.TemporaryFile("w+") as output:
        processes = [
            subprocess.Popen(
                [sys.executable, str(script), *arguments], env=environment, stdout=output, stderr=subprocess.STDOUT
            )
            for environment in rank_environments(ranks)
        ]
        try:
            deadline = time.monotonic() + timeout_s
            while any(process.poll() is None for process in processes):
                failed = [rank for rank, process in enumerate(processes) if process.poll()]
                if failed or time.monotonic() > deadline:
                    break
                time.sleep(0.05)
            codes = [process.poll() for process in processes]
            output.seek(0)
            assert codes == [0] * ranks, f"the ranks ended with {codes} (None: not at all):\n{output.read()[-4000:]}"
        finally:
            for process in processes:
                process.kill()
                process.wait()
