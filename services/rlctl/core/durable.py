"""Files that survive a power cut, and folders whose damage is noticed."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from rlctl.core.errors import DataLossError

MANIFEST = "manifest.json"


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


def write_manifest(folder: Path) -> None:
    """Writes `manifest.json`: sha256 and size of every file below `folder`."""
    files = {str(path.relative_to(folder)): _entry(path) for path in sorted(folder.rglob("*")) if path.is_file()}
    write_atomic(folder / MANIFEST, json.dumps(files, indent=1).encode())


def check_manifest(folder: Path) -> None:
    """Raises DataLossError naming the file that is not what the manifest says."""
    try:
        wanted: dict[str, dict[str, Any]] = json.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError) as error:
        raise DataLossError(f"{folder}: the manifest cannot be read ({error})", reason="CHECKPOINT_DAMAGED") from error
    for name, entry in wanted.items():
        path = folder / name
        if not path.is_file() or _entry(path) != entry:
            raise DataLossError(f"{path} is not what the manifest says", reason="CHECKPOINT_DAMAGED")


def _entry(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"sha256": hashlib.file_digest(file, "sha256").hexdigest(), "bytes": path.stat().st_size}
