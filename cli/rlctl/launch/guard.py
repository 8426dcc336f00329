"""Runs one service and leaves nothing of it behind. Run as a plain script; standard library only.

    python -I -S guard.py COMMAND ARGUMENT...

A service is a group of processes: vLLM's engine outlives its killed parent, a reward function runs in a
session of its own. The guard adopts every orphan below it (child subreaper), and ends all of them

- when the service ends, by itself or by a signal;
- when the guard's stdin closes, that is when whoever started it is dead, however it died.

On stdin it takes lines: `signal N` sends signal N to the service alone, `kill` ends everything.
On stdout it says `started PID`, and at the end `exit CODE` (negative: minus the number of the signal).
The service writes to the guard's stderr. If the guard itself is killed, the kernel kills the service.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def descendants() -> list[int]:
    """Ids of all processes below this one, by their parents."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", "rb") as stat:
                    parent = int(stat.read().rpartition(b")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue
            children.setdefault(parent, []).append(int(entry))
    found: list[int] = []
    ahead = [os.getpid()]
    while ahead:
        below = children.get(ahead.pop(), [])
        found += below
        ahead += below
    return found


def end_all(service: subprocess.Popen[bytes]) -> None:
    """Kills everything below until nothing is left; what is killed mid-fork shows up in the next round."""
    while True:
        alive = descendants()
        for pid in alive:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        service.poll()
        while service.returncode is not None:
            try:
                if os.waitpid(-1, os.WNOHANG) == (0, 0):
                    break
            except ChildProcessError:
                return
        time.sleep(0.01)


def _bind_to_parent() -> None:
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def main(command: list[str]) -> int:
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    os.set_blocking(wake_read, False)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    service = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=2, stderr=2, start_new_session=True,
        preexec_fn=_bind_to_parent,  # noqa: PLW1509 - no other thread runs here, least of all one of gRPC
    )  # fmt: skip
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, _: service.send_signal(received))
    os.write(1, b"started %d\n" % service.pid)
    pending = b""
    while service.poll() is None:
        ready, _, _ = select.select([0, wake_read], [], [])
        if wake_read in ready:
            os.read(wake_read, 4096)
        if 0 not in ready:
            continue
        received = os.read(0, 4096)
        if not received:
            break
        *lines, pending = (pending + received).split(b"\n")
        if b"kill" in lines:
            break
        for line in lines:
            service.send_signal(int(line.removeprefix(b"signal ")))
    end_all(service)
    os.write(1, b"exit %d\n" % service.returncode)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
