"""Engine processes end with the process that serves: vLLM's outlive a killed parent."""

from __future__ import annotations

import os
import select
import signal
import threading

#: Environment variable with the pid of the serving process, for the processes it starts.
FRONT = "RLCTL_GENERATION_FRONT"


def announce() -> None:
    """Called by the serving process before it starts others."""
    os.environ[FRONT] = str(os.getpid())


def follow() -> None:
    """Called in a process that the engine started: from now on it is killed when the serving process is gone.

    The process between the two, which may have no code of ours, is killed along.
    """
    front = int(os.environ.get(FRONT, "0"))
    if not front or front == os.getpid():
        return
    try:
        handle = os.pidfd_open(front)
    except ProcessLookupError:
        os.kill(os.getpid(), signal.SIGKILL)
        return
    parent = os.getppid()
    threading.Thread(target=_wait, args=(handle, front, parent), name="rlctl-lifeline", daemon=True).start()


def _wait(handle: int, front: int, parent: int) -> None:
    select.select([handle], [], [])
    # An orphan has another parent by now, which is not ours to end.
    if parent != front and os.getppid() == parent:
        os.kill(parent, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
