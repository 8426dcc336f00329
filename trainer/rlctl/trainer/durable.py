"""Writing that survives a power cut: fsync of files and of the folders that name them."""

from __future__ import annotations

import os
from pathlib import Path


def fsync_path(path: Path) -> None:
    """Flushes a file or a folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomic(path: Path, data: bytes) -> None:
    """Replaces `path` by `data`: after a crash it holds the old bytes or the new ones, never a mixture."""
    aside = path.with_name(path.name + ".tmp")
    with aside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    aside.rename(path)
    fsync_path(path.parent)


def fsync_tree(folder: Path) -> None:
    """Flushes every file and folder below `folder`, and itself."""
    for path in sorted(folder.rglob("*"), reverse=True):
        fsync_path(path)
    fsync_path(folder)
