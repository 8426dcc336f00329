"""The beginning of every service process: its settings from the command line, its threads."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TypeVar

from rlctl.core.config import StrictConfig, load

C = TypeVar("C", bound=StrictConfig)


def arguments(cls: type[C], argv: list[str] | None = None) -> C:
    """Reads `[--config FILE] [key=value ...]`. Raises ConfigError."""
    parser = argparse.ArgumentParser(description=cls.__doc__)
    parser.add_argument("--config", type=Path, help="settings as TOML or JSON")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings that win over the file's")
    given = parser.parse_args(argv)
    return load(cls, given.config, given.overrides)


def set_threads(threads: int) -> None:
    """Bounds the CPU threads of this process; must be called before torch or numpy is imported."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(threads)
