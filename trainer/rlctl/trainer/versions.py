"""Policy versions: which was taken after how many steps. A number is never used twice, across any crash."""

from __future__ import annotations

import json
from pathlib import Path

from rlctl.core.durable import write_atomic

#: Versions remembered; older samples than this count as `REMEMBERED` steps stale.
REMEMBERED = 1000


class PolicyVersions:
    """A small file, flushed before a version is used."""

    def __init__(self, path: Path) -> None:
        self._path = path
        text = path.read_text() if path.exists() else "{}"
        self._step_of = {int(version): int(step) for version, step in json.loads(text).items()}

    def take(self, step: int) -> int:
        """A new version for the weights after `step` steps."""
        version = max(self._step_of, default=0) + 1
        self._step_of[version] = step
        for old in sorted(self._step_of)[:-REMEMBERED]:
            del self._step_of[old]
        write_atomic(self._path, json.dumps(self._step_of).encode())
        return version

    def staleness(self, version: int, step: int) -> int:
        """Optimizer steps of the run between the weights that sampled and those after `step` steps."""
        return step - self._step_of.get(version, step - REMEMBERED)
