"""Checkpoints: each one is a single atomic commit of everything a run needs to go on.

    checkpoints/step-00000012/
        actor/          model, optimizer, scheduler and RNG (the learner's own files)
        state.json      step, data cursor, ledger, KL beta, critic tag, wall time
        manifest.json   sha256 and size of every file above

It is written to `step-00000012.tmp`, flushed, given its manifest, renamed. A folder with another name
than `step-NNNNNNNN` is no checkpoint. Before anything opens a file of it, the manifest is checked.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from rlctl.core.durable import check_manifest, fsync_path, fsync_tree, write_atomic, write_manifest
from rlctl.core.errors import DataLossError, FencedError

logger = logging.getLogger(__name__)
_NAME = re.compile(r"step-(\d{8})")


@dataclass(frozen=True)
class RunState:
    """The trainer's state beside the weights, after `step` steps."""

    step: int
    cursor: dict[str, Any]
    ledger: dict[str, Any]
    beta: float
    critic_tag: str
    fence: int
    seconds: float


class State(Protocol):
    """What every trainer's state has; a dataclass of JSON values."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def step(self) -> int:
        """Steps done."""

    @property
    def fence(self) -> int:
        """Fencing epoch of the trainer that commits."""


S = TypeVar("S", bound=State)


class Checkpoints(Generic[S]):
    """The checkpoints of a run; `state_type` is what lies in their `state.json`."""

    state_type: type[S]

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def steps(self) -> list[int]:
        """Steps of the committed checkpoints, ascending."""
        found = (_NAME.fullmatch(path.name) for path in self._folder.iterdir() if path.is_dir())
        return sorted(int(match[1]) for match in found if match)

    def path(self, step: int) -> Path:
        return self._folder / f"step-{step:08d}"

    def begin(self, step: int) -> Path:
        """An empty folder to write a checkpoint to."""
        aside = self._folder / f"step-{step:08d}.tmp"
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        return aside

    def commit(self, aside: Path, state: S, keep: int) -> Path:
        """Makes what lies in `aside` the newest checkpoint, and deletes all but the newest `keep`.

        Raises FencedError when a trainer with a higher fencing epoch has committed meanwhile.
        """
        self._refuse_if_fenced(state.fence)
        (aside / "state.json").write_text(json.dumps(asdict(state), indent=1, sort_keys=True))
        write_manifest(aside)
        fsync_tree(aside)
        final = self.path(state.step)
        if final.exists():
            shutil.rmtree(final)
        aside.rename(final)
        fsync_path(self._folder)
        for step in self.steps()[:-keep]:
            shutil.rmtree(self.path(step))
        return final

    def latest(self) -> tuple[Path, S] | None:
        """The newest checkpoint whose files are what its manifest says; a damaged one is passed over, loudly."""
        for step in reversed(self.steps()):
            folder = self.path(step)
            try:
                check_manifest(folder)
            except DataLossError as error:
                logger.error("%s; going back to the checkpoint before it", error.message)
                continue
            return folder, self.state_type(**json.loads((folder / "state.json").read_text()))
        return None

    @property
    def fence(self) -> int:
        """Highest fencing epoch that has claimed the folder; 0 before any."""
        owner = self._folder / "fence"
        return int(owner.read_text()) if owner.exists() else 0

    def claim(self, fence: int) -> None:
        """Marks the folder as owned by this fencing epoch, so that an older trainer cannot commit."""
        self._refuse_if_fenced(fence)
        write_atomic(self._folder / "fence", str(fence).encode())

    def _refuse_if_fenced(self, fence: int) -> None:
        if self.fence > fence:
            raise FencedError(
                f"another trainer (epoch {self.fence}) owns {self._folder}; this one (epoch {fence}) must end"
            )


class CheckpointStore(Checkpoints[RunState]):
    """The checkpoints of a run of the PPO family."""

    state_type = RunState
