"""Becomes another command that is killed when its parent is gone, however that went (Linux). Standard library only.

    python -I -S bound.py PARENT_PID COMMAND ARGUMENT...

A program of its own, since code between fork and exec may hang in a process whose other threads speak gRPC.
"""

import contextlib
import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(parent: int, command: list[str]) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == parent:
        os.execv(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
