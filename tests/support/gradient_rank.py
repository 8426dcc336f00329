"""One rank of the gradient test: the gradient of the same step, split in many ways.

    gradient_rank.py MODEL_FOLDER OUT.safetensors STAGES

One rank without ZeRO tries every loss, aggregation and split; the others each loss once, in the finest splits.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from rlctl.algorithms.aggregate import aggregate
from rlctl.algorithms.policy_loss import cispo_loss, gspo_loss, ppo_loss, reinforce_loss
from rlctl.algorithms.value_loss import value_loss
from rlctl.learner.config import LearnerConfig, OptimizerConfig
from rlctl.learner.learner import Learner
from rlctl.learner.loss import Batch, LossFn, LossOutput, Totals
from rlctl.learner.sequence import Sequence
from rlctl.models.load import load_causal_lm, load_value_model

POLICY = {"ppo": ppo_loss, "gspo": gspo_loss, "cispo": cispo_loss, "reinforce": reinforce_loss}
MODES = ("token", "sequence", "constant")
#: (packing, tokens of a micro-batch)
SPLITS = [(False, 4096), (True, 4096), (True, 40), (False, 60)]
#: Each loss with one aggregation.
USUAL = {"ppo": "token", "gspo": "sequence", "cispo": "constant", "reinforce": "token"}


def sequences() -> list[Sequence]:
    """21 sequences of uneven lengths; some tokens untrained, one sequence wholly so."""
    generator = torch.Generator().manual_seed(1)
    found = []
    for number in range(21):
        prompt, response = 1 + number % 5, 1 + (number * 7) % 11
        ids = torch.randint(4, 60, (prompt + response,), generator=generator)
        mask = torch.rand(response, generator=generator) > 0.2
        mask[0] = number != 3
        fields = {
            "old_logprobs": -4.2 + 0.3 * torch.randn(response, generator=generator),
            "advantages": torch.randn(response, generator=generator),
            "old_values": 0.2 * torch.randn(response, generator=generator),
            "returns": torch.randn(response, generator=generator),
        }
        found.append(Sequence(ids[:prompt], ids[prompt:], mask & (number != 3), fields))
    return found


def share(found: list[Sequence], rank: int, ranks: int) -> list[Sequence]:
    """Two ranks: 4 sequences and 17, so that they have different numbers of micro-batches."""
    return found if ranks == 1 else (found[:4], found[4:])[rank]


def policy(kind: str, mode: str) -> LossFn:
    def loss(batch: Batch, totals: Totals) -> LossOutput:
        result = POLICY[kind](
            batch.logprobs_BT, batch.fields["old_logprobs"], batch.fields["advantages"], batch.mask_BT
        )
        return LossOutput(_total(result.loss_BT, batch, totals, mode), result.metrics)

    return loss


def entropy(batch: Batch, totals: Totals) -> LossOutput:
    assert batch.entropy_BT is not None
    return LossOutput(_total(-batch.entropy_BT + 0.1 * batch.logprobs_BT, batch, totals, "token"))


def value(batch: Batch, totals: Totals) -> LossOutput:
    fields = batch.fields
    loss_BT = value_loss(batch.values_BT, fields["old_values"], fields["returns"], batch.mask_BT, 0.2)
    return LossOutput(_total(loss_BT, batch, totals, "token"))


def _total(loss_BT: torch.Tensor, batch: Batch, totals: Totals, mode: str) -> torch.Tensor:
    return aggregate(
        loss_BT, batch.mask_BT, mode, total_tokens=totals.tokens, total_sequences=totals.sequences, max_len=11
    )


def gradients(
    learner: Learner, loss: LossFn, splits: list[tuple[bool, int]], with_entropy: bool = False
) -> dict[str, torch.Tensor]:
    """By split; the learning rate is so small that no step moves a float32 weight."""
    found = {}
    mine = share(sequences(), torch.distributed.get_rank(), torch.distributed.get_world_size())
    for packing, budget in splits:
        learner.config = learner.config.model_copy(update={"packing": packing, "micro_batch_tokens": budget})
        metrics = learner.accumulate(mine, loss, temperature=0.7, entropy=with_entropy)
        name = f"{'packed' if packing else 'padded'}-{budget}"
        found[name] = learner.gradients()
        norm = learner.apply()["grad_norm"]
        found[f"{name}.norm"] = torch.tensor([norm])
        found[f"{name}.loss"] = torch.tensor([metrics["loss"]])
    return found


def main(model: str, out: str, stages: str) -> None:
    found: dict[str, torch.Tensor] = {}
    for stage in map(int, stages.split(",")):
        optimizer = OptimizerConfig(lr=1e-30, max_grad_norm=0.5)
        config = LearnerConfig(dtype="float32", zero_stage=stage, optimizer=optimizer)
        learner = Learner(load_causal_lm(Path(model), "float32"), config, total_steps=1)
        everything = stage == 0 and torch.distributed.get_world_size() == 1
        pairs = [(kind, mode) for kind in POLICY for mode in MODES] if everything else list(USUAL.items())
        losses = {f"{kind}-{mode}": policy(kind, mode) for kind, mode in pairs}
        splits = SPLITS if everything else SPLITS[2:]
        for name, loss in losses.items():
            for split, gradient in gradients(learner, loss, splits).items():
                found[f"{name}/zero{stage}/{split}"] = gradient
        for split, gradient in gradients(learner, entropy, splits, with_entropy=True).items():
            found[f"entropy/zero{stage}/{split}"] = gradient
        if stage == 3:
            learner.save_hf(Path(out).with_suffix(""), None)
        critic = Learner(load_value_model(Path(model), "float32", seed=0), config, total_steps=1, value=True)
        for split, gradient in gradients(critic, value, splits).items():
            found[f"value/zero{stage}/{split}"] = gradient
    if torch.distributed.get_rank() == 0:
        save_file(found, out)


if __name__ == "__main__":
    main(*sys.argv[1:])
