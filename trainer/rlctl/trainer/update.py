"""One training step on the learner's side, run by every rank alike.

settled step ─► sequences ─► old log-probs (each rank its share, then gathered; or the update's own, see `own_pass`)
                             values (rank 0 asks the critic meanwhile)
                         ─► advantages ─► passes × minibatches of optimizer steps (the critic's beside them),
                                          each with a batch of given examples where `ptx` is set
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future

import torch

from rlctl.core.errors import DeadlineError
from rlctl.learner.batch import share_out
from rlctl.learner.distributed import broadcast_bytes, gather_ragged
from rlctl.learner.learner import Learner
from rlctl.learner.sequence import Sequence
from rlctl.trainer import own_pass
from rlctl.trainer.config import TrainerConfig
from rlctl.trainer.critic import CriticLink
from rlctl.trainer.experience import Experience, correct, estimate, read, reference_metrics, rollout_metrics
from rlctl.trainer.objective import policy_objective
from rlctl.trainer.own_pass import OwnPass
from rlctl.trainer.ptx import PretrainMix
from rlctl.v1 import journal_pb2


class Updater:
    """Trains the actor (and through `critic`, on rank 0, the critic) on settled steps."""

    def __init__(
        self,
        config: TrainerConfig,
        learner: Learner,
        rank: int,
        world_size: int,
        critic: CriticLink | None,
        ptx: PretrainMix | None = None,
    ) -> None:
        self._config = config
        self._learner = learner
        self._rank = rank
        self._world_size = world_size
        self._critic = critic
        self._ptx = ptx

    def step(self, payload: bytes) -> dict[str, float]:
        """Trains on one settled step; `payload` is a TrainOrder. Returns its metrics (complete on rank 0)."""
        order = journal_pb2.TrainOrder.FromString(payload)
        config = self._config
        experience = read(order.settled, config)
        if not experience.sequences:
            return {"samples": 0.0}
        values = None
        if config.needs_critic and self._critic is not None:
            values = self._critic.values(experience.sequences)
        frozen = order.settled.step < config.train.freezing_actor_steps
        enough = not frozen and own_pass.is_enough(config, self._learner)
        own = OwnPass(config, experience.sequences) if enough else None
        metrics = rollout_metrics(experience)
        if own is None:
            local = self._learner.logprobs(self._mine(experience.sequences), config.sampling.temperature)
            self._share_logprobs(experience, local)
            metrics |= correct(experience, config)
        if config.needs_critic:
            self._share_values(experience, values)
        metrics |= estimate(experience, config, order.beta)
        metrics |= self._optimise(experience, order, own)
        if own is not None:
            self._share_logprobs(experience, [own.of(sequence) for sequence in self._mine(experience.sequences)])
            metrics |= correct(experience, config)
        return metrics | reference_metrics(experience, config, order.beta)

    def _mine(self, sequences: list[Sequence]) -> list[Sequence]:
        return self._shares(sequences)[self._rank]

    def _shares(self, sequences: list[Sequence]) -> list[list[Sequence]]:
        """Every rank's sequences, tokens evenly spread; the same on every rank."""
        shares = share_out([len(sequence) for sequence in sequences], self._world_size)
        return [[sequences[index] for index in share] for share in shares]

    def _share_logprobs(self, experience: Experience, local: list[torch.Tensor]) -> None:
        """`old_logprobs` of all sequences: under the weights before the step, at the sampling temperature.

        `local` are those of this rank's share.
        """
        for share, parts in zip(self._shares(experience.sequences), gather_ragged(local), strict=True):
            for sequence, logprobs in zip(share, parts, strict=True):
                sequence.fields["old_logprobs"] = logprobs

    def _share_values(self, experience: Experience, values: Future[list[torch.Tensor]] | None) -> None:
        """`old_values`: rank 0 has them from the critic, the others from rank 0."""
        data = None
        if values is not None:
            try:
                data = torch.cat(values.result(self._config.critic.timeout_s)).numpy().tobytes()
            except TimeoutError:
                raise DeadlineError("the critic gave no values in time; see its log") from None
        flat = torch.frombuffer(bytearray(broadcast_bytes(data)), dtype=torch.float32)
        parts = flat.split([len(sequence.response_ids) for sequence in experience.sequences])
        for sequence, piece in zip(experience.sequences, parts, strict=True):
            sequence.fields["old_values"] = piece

    def _optimise(self, experience: Experience, order: journal_pb2.TrainOrder, own: OwnPass | None) -> dict[str, float]:
        config = self._config
        step = order.settled.step
        batches = list(minibatches(experience.sequences, config, step))
        critic = None
        if self._critic is not None:
            critic = self._critic.train(step, batches)
        sums: dict[str, float] = {}
        first: dict[str, float] = {}
        if step >= config.train.freezing_actor_steps:
            objective = policy_objective(config, order.beta, own)
            for batch in batches:
                part = self._learner.step(
                    self._mine(batch),
                    objective,
                    temperature=config.sampling.temperature,
                    entropy=config.loss.entropy_coef > 0,
                    also=[] if self._ptx is None else [self._ptx.draw(self._rank, self._world_size)],
                )
                part = {name if "/" in name else f"policy/{name}": value for name, value in part.items()}
                first = first or part
                for name, value in part.items():
                    sums[name] = sums.get(name, 0.0) + value / len(batches)
        metrics = dict(sums)
        if "policy/ratio_mean" in first:
            metrics["policy/ratio_first"] = first["policy/ratio_mean"]
        if critic is not None:
            metrics |= self._critic_metrics(critic)
        return metrics

    def _critic_metrics(self, training: Future[dict[str, float]]) -> dict[str, float]:
        try:
            return training.result(self._config.critic.timeout_s)
        except TimeoutError:
            raise DeadlineError("the critic did not finish its step in time; see its log") from None


def minibatches(sequences: list[Sequence], config: TrainerConfig, step: int) -> Iterator[list[Sequence]]:
    """The batches of a step's optimizer steps: every pass in an order of its own, drawn from seed, step and pass.

    A batch without a trained token is left out.
    """
    for number in range(config.train.passes):
        order = list(range(len(sequences)))
        if config.train.minibatches > 1:
            generator = torch.Generator().manual_seed((config.seed << 40) + (step << 8) + number)
            order = torch.randperm(len(sequences), generator=generator).tolist()
        size = -(-len(sequences) // config.train.minibatches)
        for begin in range(0, len(sequences), size):
            batch = [sequences[index] for index in order[begin : begin + size]]
            if any(bool(sequence.mask.any()) for sequence in batch):
                yield batch
