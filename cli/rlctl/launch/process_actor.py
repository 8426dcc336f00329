"""The Ray actor around one service process: starts it under a guard, waits for it, ends it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from rlctl.core.errors import ConfigError
from rlctl.core.ports import free_port
from rlctl.launch import sweep
from rlctl.launch.spec import NODE_IP

GUARD = str(Path(__file__).with_name("guard.py"))
TAIL_BYTES = 8192

#: Variables that belong to Ray's own worker or to another launch, not to the service below it.
_NOT_INHERITED = ("RAY_", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_")


class ProcessActor:
    """Runs one process at a time; `run` blocks in its own thread while the other methods answer."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._guard: subprocess.Popen[bytes] | None = None
        self._ended = -1
        self._lock = threading.Lock()

    def address(self, start: str) -> tuple[str, str]:
        """(interface, address) of this machine whose IPv4 address begins with `start`. Raises ConfigError."""
        import psutil

        for interface, addresses in psutil.net_if_addrs().items():
            for one in addresses:
                if one.family == socket.AF_INET and one.address.startswith(start):
                    return interface, one.address
        raise ConfigError(
            f"machine {socket.gethostname()} has no address that begins with {start!r}: set cluster.interface to the "
            "beginning of the private network's addresses"
        )

    def free_port(self, address: str) -> int:
        return free_port(address)

    def run(
        self,
        life: int,
        command: list[str],
        config: dict[str, Any],
        config_path: str,
        log_path: str,
        env: dict[str, str],
        cwd: str,
        node_ip: str,
    ) -> dict[str, Any]:
        """Runs `command --config config_path` to its end; `life` counts the starts of this process.

        Gives `code` (negative: minus the signal), `pid`, `seconds` it lived, `tail` (end of its log). What an
        earlier process of this name left behind is ended first.
        """
        began = time.monotonic()
        mark = env[sweep.PROCESS]
        sweep.sweep(sweep.PROCESS, mark)
        path = Path(config_path)
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_suffix(".writing")
        aside.write_text(json.dumps(config, indent=2).replace(NODE_IP, node_ip) + "\n", encoding="utf-8")
        os.replace(aside, path)
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(_NOT_INHERITED)}
        Path(log_path).parent.mkdir(parents=True, exist_ok=True)
        with open(log_path, "ab") as log:
            log_start = log.tell()
            with self._lock:
                if life <= self._ended:
                    return {"code": -int(signal.SIGKILL), "pid": 0, "seconds": 0.0, "tail": ""}
                self._guard = subprocess.Popen(
                    [sys.executable, "-I", "-S", GUARD, sys.executable, *command, "--config", config_path],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    cwd=cwd,
                    env=inherited | env,
                    start_new_session=True,
                )
        guard = self._guard
        assert guard.stdin is not None
        assert guard.stdout is not None
        pid, code = 0, -int(signal.SIGKILL)
        with guard.stdin, guard.stdout:
            for line in guard.stdout:
                word, _, number = line.decode().strip().partition(" ")
                if word == "started":
                    pid = int(number)
                elif word == "exit":
                    code = int(number)
            guard.wait()
        sweep.sweep(sweep.PROCESS, mark)
        return {"code": code, "pid": pid, "seconds": time.monotonic() - began, "tail": _tail(log_path, log_start)}

    def signal(self, number: int) -> None:
        """Sends a signal to the service process alone; nothing where none runs."""
        self._tell(f"signal {number}\n")

    def kill(self, life: int) -> None:
        """Ends the service and all below it, also when that life has not begun yet."""
        with self._lock:
            self._ended = max(self._ended, life)
        self._tell("kill\n")

    def _tell(self, line: str) -> None:
        with self._lock:
            if self._guard is None or self._guard.poll() is not None or self._guard.stdin is None:
                return
            try:
                self._guard.stdin.write(line.encode())
                self._guard.stdin.flush()
            except (OSError, ValueError):
                return


def _tail(log_path: str, start: int) -> str:
    """The end of what this process wrote."""
    with open(log_path, "rb") as log:
        size = log.seek(0, os.SEEK_END)
        log.seek(max(start, size - TAIL_BYTES))
        return log.read().decode("utf-8", "replace")
