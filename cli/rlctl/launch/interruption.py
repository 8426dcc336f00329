"""Signals and marks of a command that runs one launch after another in its own process."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

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
def interruptible_ray() -> Iterator[None]:
    """While Ray starts: it has SIGTERM end the process with status 15 from then on; here that stays an interrupt."""
    from ray._private import utils

    def instead(_handler: object) -> None:
        signal.signal(signal.SIGTERM, signal.default_int_handler)

    with patch.object(utils, "set_sigterm_handler", instead, create=True):
        yield


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
