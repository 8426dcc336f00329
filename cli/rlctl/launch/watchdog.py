"""Ends everything of a launch when the launcher is gone, however it went. Standard library only.

    python -I -S watchdog.py LAUNCH_ID

It sits in a session of its own and reads stdin, whose other end only the launcher holds.
"""

from __future__ import annotations

import os
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import sweep


def main(launch_id: str) -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while os.read(0, 4096):
        pass
    return 1 if sweep.sweep(sweep.LAUNCH, launch_id) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
