"""Commits: the checkpoint, the critic's tag and the journal, kept in step with one another."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

from rlctl.trainer.checkpoint import CheckpointStore, RunState
from rlctl.trainer.config import TrainerConfig
from rlctl.trainer.critic import CriticLink
from rlctl.trainer.journal import Journal
from rlctl.trainer.ledger import Ledger
from rlctl.trainer.progress import Progress
from rlctl.trainer.ranks import Ranks
from rlctl.v1 import journal_pb2

logger = logging.getLogger(__name__)

SAVE = "save"
LOAD = "load"


class Commits:
    """On rank 0: writes and restores commits."""

    def __init__(
        self,
        config: TrainerConfig,
        ranks: Ranks,
        store: CheckpointStore,
        journal: Journal,
        critic: CriticLink | None,
        fence: int,
    ) -> None:
        self._config = config
        self._ranks = ranks
        self._store = store
        self._journal = journal
        self._critic = critic
        self._fence = fence
        self.last_step: int | None = None

    def restore(self, progress: Progress) -> None:
        """Goes back to the newest sound commit, or to the start."""
        self._store.claim(self._fence)
        found = self._store.latest()
        if self._critic is not None:
            self._critic.load(found[1].critic_tag if found else "")
        if found is None:
            return
        folder, state = found
        self._ranks.run(LOAD, str(folder / "actor").encode())
        progress.step = state.step
        progress.cursor.restore(state.cursor)
        progress.ledger = Ledger(**state.ledger)
        progress.beta = state.beta
        progress.continue_from(state.seconds)
        self.last_step = state.step
        logger.info("restored the checkpoint of step %d", state.step)

    def to_replay(self, progress: Progress) -> Iterator[journal_pb2.SettledStep]:
        """The journal's settled steps from `progress.step` on; takes each into ledger and cursor first.

        Whoever iterates trains on the step and counts `progress.step` up. Groups that were issued for a step
        that is not settled enter the ledger as pending.
        """
        while True:
            records = self._journal.read(progress.step)
            progress.cursor.take(sum(task.id.attempt == 0 for task in records.issued))
            progress.ledger.apply(records)
            if records.settled is None:
                return
            yield records.settled

    def commit(self, progress: Progress) -> Path:
        """Writes a checkpoint after `progress.step` steps; prunes what no checkpoint needs."""
        step = progress.step
        tag = f"step-{step:08d}"
        aside = self._store.begin(step)
        self._ranks.run(SAVE, str(aside / "actor").encode())
        if self._critic is not None:
            self._critic.save(tag, keep=[f"step-{old:08d}" for old in self._store.steps()])
        state = RunState(
            step=step,
            cursor=progress.cursor.state(),
            ledger=progress.ledger.state(),
            beta=progress.beta,
            critic_tag=tag if self._critic is not None else "",
            fence=self._fence,
            seconds=progress.seconds,
        )
        folder = self._store.commit(aside, state, self._config.checkpoint.keep)
        if self._config.journal.keep == "needed":
            self._journal.prune(self._store.steps()[0])
        self.last_step = step
        return folder
