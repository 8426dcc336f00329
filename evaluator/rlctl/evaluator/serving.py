"""A generation service of our own, for `rlctl eval --model X` without an address."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from rlctl.core.errors import UnavailableError

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class OwnService:
    """The service's process and address."""

    address: str
    process: subprocess.Popen[bytes]
    log_path: Path

    async def ended(self) -> None:
        """Returns never; raises UnavailableError with the log's end when the process ended by itself."""
        while self.process.poll() is None:
            await asyncio.sleep(0.5)
        tail = self.log_path.read_text("utf-8", "replace")[-800:].strip()
        raise UnavailableError(f"the generation service ended: {tail} (whole log: {self.log_path})")


@contextlib.contextmanager
def generation_service(model: str, log_path: Path, threads: int, secrets: Collection[str] = ()) -> Iterator[OwnService]:
    """Starts `python -m rlctl.generation` with a model on loopback and ends its whole group in any case.

    It is not ready yet when its address is given: clients wait. secrets: environment variables that it does not get.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [
        sys.executable, "-m", "rlctl.generation", f"model={json.dumps(model)}", f"server.listen={json.dumps(address)}",
        "server.metrics_listen=none", f"threads={threads}",
    ]  # fmt: skip
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_bind,
            env={name: value for name, value in os.environ.items() if name not in secrets},
        )  # fmt: skip
    try:
        yield OwnService(address, process, log_path)
    finally:
        _end(process)


def _bind() -> None:
    """In the new process: it is killed when ours is gone, however that went (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
