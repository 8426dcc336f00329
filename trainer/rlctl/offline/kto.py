"""Kahneman-Tversky optimisation. B sequences of a micro-batch, N of a held-out set."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from rlctl.algorithms.preference import kto_kl, kto_loss, sequence_logprobs
from rlctl.core.errors import ConfigError
from rlctl.data.kto import Judged
from rlctl.learner import distributed
from rlctl.learner.learner import Learner
from rlctl.learner.loss import Batch, LossOutput, Totals
from rlctl.learner.sequence import Sequence
from rlctl.offline.config import KTOConfig
from rlctl.offline.dpo import response
from rlctl.offline.objective import Item, Objective
from rlctl.offline.reference import REFERENCE, Reference

#: Scalar of a sequence: 1 for a desirable response, 0 for an undesirable one.
DESIRABLE = "desirable"


@dataclass(frozen=True)
class _Rewards:
    """Of a held-out set, on every rank."""

    gap_N: Tensor
    """Policy minus reference, nats."""
    desirable_N: Tensor


class KTOObjective(Objective):
    """The mean over the responses of the optimizer step.

    An item is a judged response and a mismatched one (its prompt, another prompt's response). The reference point of
    a step is the mean log-ratio of its mismatched ones, from a first pass without a gradient.
    """

    def __init__(self, learner: Learner, config: KTOConfig, reference: Reference) -> None:
        super().__init__(learner)
        self._config = config
        self._reference = reference

    def prepare(self, items: Seq[Item], held_out: Seq[Item]) -> None:
        self._reference.precompute([*(items if self._reference.precomputes else ()), *held_out])

    def step(self, items: Seq[Item]) -> dict[str, float]:
        judged = self._reference.add(self.share([item[:1] for item in items]))
        kl = self._reference_point(items)
        return self.learner.step(judged, partial(self._loss, kl)) | {"kl": kl}

    def measure(self, items: Seq[Item]) -> dict[str, float]:
        """`accuracy` is the win rate: how often a desirable response's reward is above an undesirable one's."""
        config, kl = self._config, self._reference_point(items)
        judged = self.share([item[:1] for item in items])
        gaps = torch.tensor(self._gaps(judged))
        labels = torch.tensor([s.scalars[DESIRABLE] for s in judged])
        parts = distributed.gather_ragged([gaps, labels])
        found = _Rewards(torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts]).bool())
        loss_N = kto_loss(
            found.gap_N,
            torch.zeros_like(found.gap_N),
            found.desirable_N,
            kl,
            beta=config.beta,
            desirable_weight=config.desirable_weight,
            undesirable_weight=config.undesirable_weight,
        )
        rewards_N = config.beta * found.gap_N
        return {
            "loss": float(loss_N.mean()),
            "accuracy": win_rate(rewards_N[found.desirable_N], rewards_N[~found.desirable_N]),
            "kl": kl,
            "reward_desirable": _mean(rewards_N[found.desirable_N]),
            "reward_undesirable": _mean(rewards_N[~found.desirable_N]),
        }

    def _loss(self, kl: float, batch: Batch, totals: Totals) -> LossOutput:
        config = self._config
        policy_B = sequence_logprobs(batch.logprobs_BT, batch.mask_BT)
        reference_B, desirable_B = batch.scalars[REFERENCE], batch.scalars[DESIRABLE].bool()
        loss_B = kto_loss(
            policy_B,
            reference_B,
            desirable_B,
            kl,
            beta=config.beta,
            desirable_weight=config.desirable_weight,
            undesirable_weight=config.undesirable_weight,
        )
        rewards_B = config.beta * (policy_B - reference_B).detach()
        good, bad = desirable_B.sum(), (~desirable_B).sum()
        return LossOutput(
            loss_B.sum() / max(totals.sequences, 1),
            {
                "reward_desirable": (rewards_B[desirable_B].sum(), good),
                "reward_undesirable": (rewards_B[~desirable_B].sum(), bad),
            },
        )

    def _reference_point(self, items: Seq[Item]) -> float:
        gaps = self._gaps(self.share([item[1:] for item in items]))
        everyone = distributed.all_gather_floats([sum(gaps), float(len(gaps))])
        return kto_kl(sum(rank[0] for rank in everyone), sum(rank[1] for rank in everyone))

    def _gaps(self, sequences: Seq[Sequence]) -> list[float]:
        """Policy minus reference of each response, summed over its tokens."""
        logprobs = self.learner.logprobs(sequences)
        references = self._reference.add(sequences)
        return [float(each.double().sum()) - s.scalars[REFERENCE] for each, s in zip(logprobs, references, strict=True)]


def to_items(judged: Seq[Judged]) -> list[Item]:
    """Each judged response with a mismatched one: that of the next row which has another prompt.

    Raises ConfigError when all rows have the same prompt.
    """
    partners = _partners([tuple(each.prompt_ids) for each in judged])
    return [
        [_labelled(each, each.response_ids), _labelled(each, judged[partner].response_ids)]
        for each, partner in zip(judged, partners, strict=True)
    ]


def _partners(prompts: list[tuple[int, ...]]) -> list[int]:
    if len(set(prompts)) < 2:
        raise ConfigError("KTO compares responses of different prompts, and this data has one prompt only")
    count = len(prompts)
    partners = [0] * count
    other = next(index for index in range(count) if prompts[index] != prompts[-1])
    for index in reversed(range(count)):
        following = (index + 1) % count
        if prompts[following] != prompts[index]:
            other = following
        partners[index] = other
    return partners


def _labelled(judged: Judged, response_ids: list[int]) -> Sequence:
    made = response(judged.prompt_ids, response_ids)
    made.scalars[DESIRABLE] = float(judged.desirable)
    return made


def win_rate(above_N: Tensor, below_N: Tensor) -> float:
    """Share of all pairs of one of each in which the first is above; a tie counts half. 0.5 where there is no pair."""
    if not len(above_N) or not len(below_N):
        return 0.5
    ordered = below_N.sort().values
    wins = torch.searchsorted(ordered, above_N) + torch.searchsorted(ordered, above_N, right=True)
    return float(wins.double().sum() / (2 * len(above_N) * len(below_N)))


def _mean(values_N: Tensor) -> float:
    return float(values_N.mean()) if len(values_N) else 0.0
