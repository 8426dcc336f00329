"""The critic's checkpoints by tag: written aside, flushed, given a manifest, renamed."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path

from rlctl.core.durable import check_manifest, fsync_path, fsync_tree, write_atomic, write_manifest
from rlctl.core.errors import FencedError, NotFoundError

_ASIDE = ".aside-"
_FENCE = "fence"


class Checkpoints:
    """The folder of tags, and the highest fencing epoch that ever used it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        fence = folder / _FENCE
        self._epoch = int(fence.read_text()) if fence.exists() else 0

    def enter(self, epoch: int) -> None:
        """Raises FencedError for an epoch below one seen before; a higher one is remembered on the disk."""
        if epoch < self._epoch:
            raise FencedError(f"a trainer of epoch {self._epoch} took over; this one has epoch {epoch} and must end")
        if epoch > self._epoch:
            write_atomic(self._folder / _FENCE, str(epoch).encode())
            self._epoch = epoch

    def aside(self, tag: str) -> Path:
        """Where `tag` is written before `commit`."""
        return self._folder / f"{_ASIDE}{tag}"

    def begin(self, tag: str) -> Path:
        """An empty folder to write `tag` to."""
        folder = self.aside(tag)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder

    def commit(self, tag: str, keep: Collection[str]) -> None:
        """Makes what `begin` gave the checkpoint `tag`; all other tags but `keep` are deleted."""
        aside, final = self.aside(tag), self._folder / tag
        write_manifest(aside)
        fsync_tree(aside)
        if final.exists():
            shutil.rmtree(final)
        aside.rename(final)
        fsync_path(self._folder)
        for path in self._folder.iterdir():
            if path.is_dir() and path.name != tag and path.name not in keep:
                shutil.rmtree(path)

    def path(self, tag: str) -> Path:
        """The folder of a tag, checked against its manifest. Raises NotFoundError, DataLossError."""
        folder = self._folder / tag
        if not folder.is_dir():
            raise NotFoundError(f"the critic has no checkpoint {tag!r}; it has: {', '.join(self.tags()) or 'none'}")
        check_manifest(folder)
        return folder

    def tags(self) -> list[str]:
        """The tags there are."""
        found = (path.name for path in self._folder.iterdir() if path.is_dir())
        return sorted(name for name in found if not name.startswith(_ASIDE))
