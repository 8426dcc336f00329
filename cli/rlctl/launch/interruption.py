"""Signals and marks of a command that runs one launch after another in its own process."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from rlctl.launch import sweep

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP end a stage as Ctrl-C does: with KeyboardInterrupt."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def own_environment() -> Iterator[None]:
    """A launch marks what it starts, and takes the signals: both end with it."""
    with interruptible():
        mark = os.environ.get(sweep.LAUNCH)
        try:
            yield
        finally:
            if mark is None:
                os.environ.pop(sweep.LAUNCH, None)
            else:
                os.environ[sweep.LAUNCH] = mark
