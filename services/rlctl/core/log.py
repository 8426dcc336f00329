"""Logging of a process: one line an event, UTC time, the process's name; never a secret."""

from __future__ import annotations

import logging
import sys
import time


def setup(name: str, level: str = "INFO") -> logging.Logger:
    """Logs to stderr as `2026-01-01T00:00:00Z INFO reward: text`; returns the `rlctl` logger."""
    formatter = logging.Formatter(f"%(asctime)sZ %(levelname)s {name}: %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logger = logging.getLogger("rlctl")
    logger.handlers[:] = [handler]
    logger.setLevel(level)
    logger.propagate = False
    return logger
