"""Finds and ends processes by a mark in their environment. Standard library only.

Everything a launch starts, Ray's own processes among them, inherits `RLCTL_LAUNCH=<random id>`; one service
and all below it also `RLCTL_PROCESS=<random id>/<name>`. So what is left of a launch is found by what it
is, never by what it is called.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

LAUNCH = "RLCTL_LAUNCH"
PROCESS = "RLCTL_PROCESS"
#: Ray and vLLM write their title over the environment that the kernel shows, and with it the mark, unless told not to.
KEEP_ENVIRONMENT = {"SPT_NOENV": "1"}


def mark(launch_id: str) -> None:
    """Marks what this process starts from now on."""
    os.environ.update(KEEP_ENVIRONMENT, **{LAUNCH: launch_id})


def marked(variable: str, value: str) -> list[int]:
    """Ids of the living processes of this machine whose environment holds `variable=value`."""
    wanted = f"{variable}={value}".encode()
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as environment:
                if wanted not in environment.read().split(b"\0"):
                    continue
            with open(f"/proc/{entry}/stat", "rb") as stat:
                state = stat.read().rpartition(b")")[2].split()[0]
        except (OSError, IndexError):
            continue
        if state not in (b"Z", b"X"):
            found.append(int(entry))
    return found


def sweep(variable: str, value: str, *, timeout_s: float = 10.0) -> list[int]:
    """Kills every process with the mark until none is left or the time is over; returns those it could not kill."""
    deadline = time.monotonic() + timeout_s
    clear = 0
    while True:
        alive = marked(variable, value)
        if not alive:
            clear += 1
            if clear == 2:
                return []
        else:
            clear = 0
            if time.monotonic() > deadline:
                return alive
        for pid in alive:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
