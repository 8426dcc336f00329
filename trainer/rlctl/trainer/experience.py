"""From the rollouts of a step to what is optimised: sequences with advantages.

Legend: B samples of the step, T longest response.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rlctl.algorithms import advantages, kl, offpolicy, shaping
from rlctl.learner.sequence import Sequence
from rlctl.trainer.config import TrainingSettings
from rlctl.trainer.rollouts import sample_fault
from rlctl.v1 import generation_pb2, journal_pb2, rollout_pb2


@dataclass
class Experience:
    """The samples of one step, in the order they are trained in."""

    sequences: list[Sequence]
    scores_B: Tensor
    group_B: Tensor
    truncated_B: Tensor
    versions_B: Tensor
    components: dict[str, list[float]] = field(default_factory=dict)
    failed_samples: int = 0

    @property
    def lengths_B(self) -> Tensor:
        return torch.tensor([len(s.response_ids) for s in self.sequences])

    @property
    def mask_BT(self) -> Tensor:
        return pad_sequence([s.mask for s in self.sequences], batch_first=True)

    def padded(self, name: str) -> Tensor:
        """A per-token field as a tensor of shape [B, T], zero beyond each response."""
        return pad_sequence([s.fields[name] for s in self.sequences], batch_first=True)

    def spread(self, name: str, values_BT: Tensor) -> None:
        """Gives every sequence its row of a [B, T] tensor as a field."""
        for sequence, row in zip(self.sequences, values_BT, strict=True):
            sequence.fields[name] = row[: len(sequence.response_ids)].contiguous()


def read(settled: journal_pb2.SettledStep, settings: TrainingSettings) -> Experience:
    """Decodes a settled step; samples that cannot be trained on are left out and counted."""
    sequences: list[Sequence] = []
    scores, group_of, truncated, versions = [], [], [], []
    components: dict[str, list[float]] = {}
    failed = 0
    for number, data in enumerate(settled.groups):
        group = rollout_pb2.RolloutGroup.FromString(data)
        for scored in group.samples:
            if sample_fault(group.task, scored) is not None:
                failed += 1
                continue
            cut = scored.sample.finish_reason == generation_pb2.FINISH_REASON_LENGTH
            sequences.append(_sequence(group.task, scored, trained=not (cut and settings.shaping.mask_truncated)))
            scores.append(scored.reward)
            group_of.append(number)
            truncated.append(cut)
            versions.append(min(scored.sample.policy_versions, default=0))
            for name, value in [*scored.reward_components.items(), *scored.extra_logs.items()]:
                components.setdefault(name, []).append(value)
    return Experience(
        sequences,
        torch.tensor(scores, dtype=torch.float32),
        torch.tensor(group_of, dtype=torch.int64),
        torch.tensor(truncated, dtype=torch.bool),
        torch.tensor(versions, dtype=torch.int64),
        components,
        failed,
    )


def _sequence(task: rollout_pb2.PromptTask, scored: rollout_pb2.RolloutSample, *, trained: bool) -> Sequence:
    response = torch.tensor(scored.sample.token_ids, dtype=torch.int64)
    fields = {"rollout_logprobs": torch.tensor(scored.sample.logprobs, dtype=torch.float32)}
    if task.needs_reference:
        fields["ref_logprobs"] = torch.tensor(scored.reference_logprobs, dtype=torch.float32)
    return Sequence(
        prompt_ids=torch.tensor(task.prompt_ids, dtype=torch.int64),
        response_ids=response,
        mask=torch.full(response.shape, trained),
        fields=fields,
    )


def estimate(experience: Experience, settings: TrainingSettings, beta: float) -> dict[str, float]:
    """Gives every sequence its `advantages` (and `returns`), and drops nothing.

    Needs the fields `old_logprobs` and `ref_logprobs` (where the KL to it is in the reward), and `old_values` (gae).
    Returns the step's metrics of rewards.
    """
    mask_BT = experience.mask_BT
    metrics: dict[str, float] = {}
    shaped_B = shaping.shape_scores(
        experience.scores_B,
        experience.lengths_B,
        experience.truncated_B,
        clip=settings.shaping.clip,
        overlong_buffer=settings.shaping.overlong_buffer,
        overlong_factor=settings.shaping.overlong_factor,
        max_len=settings.sampling.max_new_tokens,
        stop_coef=settings.shaping.stop_coef,
    )
    metrics["reward/shaped_mean"] = shaped_B.mean().item()
    kl_BT = None
    if settings.needs_reference and not settings.kl.as_loss:
        kl_BT = kl.kl_per_token(
            experience.padded("old_logprobs"), experience.padded("ref_logprobs"), mask_BT, settings.kl.estimator
        )
    estimator = settings.advantage.estimator
    shaped_B, _ = advantages.group_scores(shaped_B, experience.group_B, estimator)
    rewards_BT = shaping.place_rewards(shaped_B, kl_BT, beta, mask_BT)
    if estimator == "gae":
        values_BT = experience.padded("old_values")
        advantages_BT, returns_BT = advantages.gae(
            rewards_BT, values_BT, mask_BT, settings.advantage.gamma, settings.advantage.lam
        )
        experience.spread("returns", returns_BT)
        metrics |= _value_metrics(values_BT, returns_BT, mask_BT)
    else:
        advantages_BT = advantages.discounted_returns(rewards_BT, mask_BT, settings.advantage.gamma)
    mode = whitening(settings)
    metrics["advantage/std"] = advantages_BT[mask_BT].std(correction=0).item() if mask_BT.any() else 0.0
    experience.spread("advantages", advantages.whiten(advantages_BT, mask_BT, mode))
    return metrics


def reference_metrics(experience: Experience, settings: TrainingSettings, beta: float) -> dict[str, float]:
    """How far the policy is from the reference, by the fields `old_logprobs` and `ref_logprobs`."""
    if not settings.needs_reference:
        return {}
    old_BT, reference_BT = experience.padded("old_logprobs"), experience.padded("ref_logprobs")
    k1_BT = kl.kl_per_token(old_BT, reference_BT, experience.mask_BT, "k1")
    return {"kl/mean": k1_BT.sum(-1).mean().item(), "kl/beta": beta}


def whitening(settings: TrainingSettings) -> advantages.Whiten:
    """What `advantage.whiten = "auto"` stands for: full where no group's own spread standardises already."""
    if settings.advantage.whiten != "auto":
        return settings.advantage.whiten
    return "full" if settings.advantage.estimator in ("gae", "reinforce", "reinforce_baseline") else "none"


def _value_metrics(values_BT: Tensor, returns_BT: Tensor, mask_BT: Tensor) -> dict[str, float]:
    values, returns = values_BT[mask_BT], returns_BT[mask_BT]
    if not len(returns):
        return {}
    spread = returns.var(correction=0)
    explained = 1 - (returns - values).var(correction=0) / spread if spread > 1e-8 else torch.zeros(())
    return {
        "value/mean": values.mean().item(),
        "value/return_mean": returns.mean().item(),
        "value/explained_variance": explained.item(),
    }


def rollout_metrics(experience: Experience) -> dict[str, float]:
    """Metrics of the samples themselves."""
    lengths = experience.lengths_B.float()
    metrics = {
        "reward/mean": experience.scores_B.mean().item(),
        "reward/std": experience.scores_B.std(correction=0).item(),
        "length/mean": lengths.mean().item(),
        "length/max": lengths.max().item(),
        "length/truncated": experience.truncated_B.float().mean().item(),
        "samples": float(len(experience.sequences)),
        "samples/failed": float(experience.failed_samples),
        "response_tokens": lengths.sum().item(),
    }
    for name, values in experience.components.items():
        metrics[f"reward/component/{name}"] = sum(values) / len(values)
    return metrics


def correct(experience: Experience, settings: TrainingSettings) -> dict[str, float]:
    """Gives every sequence its off-policy `weights` where a correction is set.

    Returns the metrics of the gap between the sampler's log-probs and the trainer's.
    """
    old_BT, rollout_BT = experience.padded("old_logprobs"), experience.padded("rollout_logprobs")
    mask_BT = experience.mask_BT
    chosen = settings.off_policy
    weights_BT = offpolicy.correction_weights(
        chosen.kind, old_BT, rollout_BT, mask_BT, low=chosen.low, high=chosen.high, seq_band=chosen.seq_band
    )
    if chosen.kind != "none":
        experience.spread("weights", weights_BT)
    sums, largest = offpolicy.mismatch_metrics(old_BT, rollout_BT, mask_BT, weights_BT)
    metrics = {name: float(total) / max(1.0, float(count)) for name, (total, count) in sums.items()}
    gap = (old_BT - rollout_BT)[mask_BT]
    return metrics | {
        "mismatch/abs_diff_mean": gap.abs().mean().item() if len(gap) else 0.0,
        "mismatch/abs_diff_max": float(largest),
    }
