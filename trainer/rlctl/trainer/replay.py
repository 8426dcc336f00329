"""`rlctl replay`: trains from the journal alone, from the first step; not a token is generated.

On CPUs with fixed thread counts the result equals, bit for bit, what the run itself came to over the same journal.
"""

from __future__ import annotations

import json
import logging

from rlctl.core.durable import write_atomic
from rlctl.core.errors import FailedPreconditionError
from rlctl.trainer.commit import Commits
from rlctl.trainer.config import TrainerConfig
from rlctl.trainer.journal import Journal
from rlctl.trainer.phases import PhaseTimer
from rlctl.trainer.progress import Progress
from rlctl.trainer.ranks import Ranks
from rlctl.trainer.step import EXPORT_MODEL, take_step

logger = logging.getLogger(__name__)


def check_complete(journal: Journal) -> None:
    """Raises FailedPreconditionError when the journal does not begin with the run's first step."""
    if journal.steps()[:1] != [0]:
        raise FailedPreconditionError(
            'the journal does not reach back to the first step: train with journal.keep = "all" to replay a run',
            reason="JOURNAL_PRUNED",
        )


def replay(config: TrainerConfig, ranks: Ranks, commits: Commits, progress: Progress) -> None:
    """Trains on every settled step in the journal and exports the model to the run's `replay/model`."""
    rows = []
    for settled in commits.to_replay(progress):
        timer = PhaseTimer()
        metrics = take_step(config, ranks, progress, settled, timer)
        rows.append({"step": settled.step} | metrics | timer.metrics())
        logger.info("replayed step %d: reward %.4f", settled.step, metrics.get("reward/mean", 0.0))
    folder = config.run_dir / "replay"
    write_atomic(folder / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())
    ranks.run(EXPORT_MODEL)
