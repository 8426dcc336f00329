"""Logging of a process: one line an event, UTC time, the process's name; never a secret."""

from __future__ import annotations

import logging
import os
import sys
import time

#: Environment variable with the level of every process: DEBUG, INFO (default), WARNING or ERROR.
LEVEL = "RLCTL_LOG_LEVEL"


def setup(name: str) -> logging.Logger:
    """Logs to stderr as `2026-01-01T00:00:00.000Z INFO reward: text`; returns the `rlctl` logger."""
    formatter = logging.Formatter(f"%(asctime)s.%(msecs)03dZ %(levelname)s {name}: %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logger = logging.getLogger("rlctl")
    logger.handlers[:] = [handler]
    level = os.environ.get(LEVEL, "INFO").upper()
    known = level in logging.getLevelNamesMapping()
    logger.setLevel(level if known else "INFO")
    if not known:
        logger.warning("%s=%s is no level (DEBUG, INFO, WARNING, ERROR): INFO is used", LEVEL, level)
    logger.propagate = False
    return logger
