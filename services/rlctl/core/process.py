"""The beginning of every service process: its settings from the command line, its threads."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
from pathlib import Path
from typing import TypeVar

from rlctl.core.config import StrictConfig, load

C = TypeVar("C", bound=StrictConfig)

#: glibc's numbers and names of the block size above which memory is given back, and of how much may lie free.
_MALLOC = {-3: "MALLOC_MMAP_THRESHOLD_", -1: "MALLOC_TRIM_THRESHOLD_"}
_KEPT = 1 << 30


def arguments(cls: type[C], argv: list[str] | None = None) -> C:
    """Reads `[--config FILE] [key=value ...]`. Raises ConfigError."""
    parser = argparse.ArgumentParser(description=cls.__doc__)
    parser.add_argument("--config", type=Path, help="settings as TOML or JSON")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings that win over the file's")
    given = parser.parse_args(argv)
    return load(cls, given.config, given.overrides)


def prepare_compute(threads: int) -> None:
    """Bounds the CPU threads of this process and of those it starts, and has them keep the memory they free.

    Must be called before torch or numpy is imported.
    """
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(threads)
    _keep_freed_memory()


def _keep_freed_memory() -> None:
    """glibc gives back every large block at once, and each next tensor pays for its pages anew: a third of the time
    of a training step on a CPU. What is set in the environment counts."""
    if any(name.startswith("MALLOC_") for name in os.environ) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    for number, name in _MALLOC.items():
        os.environ[name] = str(_KEPT)
        with contextlib.suppress(AttributeError, OSError):
            ctypes.CDLL(None).mallopt(number, _KEPT)
