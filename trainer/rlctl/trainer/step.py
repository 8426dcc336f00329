"""What a settled step does to the run: shared by training and replay."""

from __future__ import annotations

from rlctl.algorithms.kl import adapt_beta
from rlctl.trainer.config import TrainerConfig
from rlctl.trainer.phases import PhaseTimer
from rlctl.trainer.progress import Progress
from rlctl.trainer.ranks import Ranks
from rlctl.trainer.versions import PolicyVersions
from rlctl.v1 import journal_pb2, rollout_pb2

UPDATE = "update"
EXPORT_MODEL = "export_model"


def take_step(
    config: TrainerConfig,
    ranks: Ranks,
    progress: Progress,
    settled: journal_pb2.SettledStep,
    timer: PhaseTimer,
) -> dict[str, float]:
    """Trains on every rank, moves the KL controller, and counts the step. Returns the step's metrics."""
    assert settled.step == progress.step
    order = journal_pb2.TrainOrder(settled=settled, beta=progress.beta)
    with timer.phase("train"):
        metrics: dict[str, float] = ranks.run(UPDATE, order.SerializeToString())
    if config.kl.target is not None and "kl/mean" in metrics:
        progress.beta = adapt_beta(
            progress.beta, metrics["kl/mean"], config.kl.target, config.kl.horizon, int(metrics["samples"])
        )
    progress.step += 1
    return metrics


def max_staleness(settled: journal_pb2.SettledStep, versions: PolicyVersions, step: int) -> float:
    """Steps between the oldest weights that sampled a token of this step, and those it trains."""
    oldest = [
        version
        for data in settled.groups
        for scored in rollout_pb2.RolloutGroup.FromString(data).samples
        for version in scored.sample.policy_versions
    ]
    return float(max((versions.staleness(version, step) for version in set(oldest)), default=0))
