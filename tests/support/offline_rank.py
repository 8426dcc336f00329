"""One rank of the offline objectives' gradient test: the same step of each, split in many ways.

    offline_rank.py POLICY_FOLDER OTHER_FOLDER OUT.safetensors STAGES TEACHER_ADDRESS

The other model is the reference of DPO and KTO, and the teacher of distillation, which a service has too.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from rlctl.data.kto import Judged
from rlctl.data.preference import Pair
from rlctl.data.process import Steps
from rlctl.data.supervised import Example
from rlctl.learner.config import LearnerConfig, OptimizerConfig
from rlctl.learner.learner import Learner
from rlctl.models.load import load_causal_lm, load_tokenizer, load_value_model
from rlctl.offline import dpo, kd, kto, prm, rm, sft
from rlctl.offline.config import DPOConfig, KTOConfig, ReferenceOptions, TeacherServiceConfig
from rlctl.offline.objective import Item, Objective
from rlctl.offline.reference import Reference
from rlctl.offline.served_teacher import ServedTeacher
from rlctl.offline.teacher import LocalTeacher, Teacher

#: (packing, tokens of a micro-batch)
SPLITS = [(False, 4096), (True, 4096), (True, 40), (False, 60)]
#: Reward tokens of the process reward model.
TOKENS = (7, 9)
COUNT = 11
BETA = 0.3


class Watched(Learner):
    """Keeps the gradient of the last step."""

    gradient: torch.Tensor

    def step(self, *arguments: Any, **settings: Any) -> dict[str, float]:
        metrics = self.accumulate(*arguments, **settings)
        self.gradient = self.gradients()
        return metrics | self.apply()


def draw() -> tuple[list[Example], list[Pair], list[Judged], list[Steps]]:
    """11 of each, of uneven lengths."""
    generator = torch.Generator().manual_seed(5)

    def ids(count: int) -> list[int]:
        return torch.randint(4, 60, (count,), generator=generator).tolist()

    examples, pairs, judged, steps = [], [], [], []
    for number in range(COUNT):
        prompt, length = ids(1 + number % 5), 1 + (number * 7) % 11
        examples.append(Example(prompt, ids(length), [place % 3 != 1 for place in range(length)]))
        pairs.append(Pair(prompt, ids(length), ids(1 + (number * 5) % 7), 0.25 * (number % 3)))
        judged.append(Judged(prompt, ids(length), number % 3 != 0))
        text = ids(length + 3)
        labels = [[1.0, 0.0], [0.25, 0.75], [0.0, 0.6]][number % 3]
        steps.append(Steps(text, [1, len(text) - 1], labels))
    return examples, pairs, judged, steps


def reference(folder: str, learner: LearnerConfig, precompute: bool) -> Reference:
    options = ReferenceOptions(model=folder, precompute=precompute)
    return Reference(options, "", learner, Path(tempfile.mkdtemp()))


def objectives(
    policy: Path, other: Path, config: LearnerConfig, address: str
) -> dict[str, tuple[list[Item], Callable[[], Objective]]]:
    """By name: the items, and what makes the objective."""
    examples, pairs, judged, steps = draw()
    data: Any = [{"path": "unread"}]

    def learner(**more: Any) -> Learner:
        return Watched(load_causal_lm(policy, "float32"), config, total_steps=1, **more)

    def preference(**settings: Any) -> Objective:
        settings = {"data": data, "beta": BETA} | settings
        frozen = reference(str(other), config, precompute=settings.pop("precompute", False))
        return dpo.DPOObjective(learner(), DPOConfig(**settings), frozen)

    def judgement() -> Objective:
        settings = KTOConfig(data=data, beta=BETA, desirable_weight=1.5, undesirable_weight=0.5)
        return kto.KTOObjective(learner(), settings, reference(str(other), config, precompute=True))

    def distillation(served: bool) -> Objective:
        teacher: Teacher = LocalTeacher(load_causal_lm(other, "float32"))
        if served:
            teacher = ServedTeacher(TeacherServiceConfig(addresses=[address]), load_tokenizer(policy))
        return kd.KDObjective(learner(forward=partial(kd.DistillForward, teacher=teacher)), 0.7, teacher)

    def process(soft: bool) -> Objective:
        return prm.PRMObjective(learner(forward=partial(prm.RewardForward, tokens=TOKENS)), soft=soft)

    def reward() -> Objective:
        model = load_value_model(policy, "float32", seed=0)
        return rm.RMObjective(Watched(model, config, total_steps=1, value=True))

    given = [sft.to_item(example) for example in examples]
    both = [dpo.to_item(pair) for pair in pairs]
    worked = [prm.to_item(each) for each in steps]
    return {
        "sft": (given, lambda: sft.SFTObjective(learner(forward=sft.GreedyForward))),
        "rm": ([rm.to_item(pair) for pair in pairs], reward),
        "dpo": (both, lambda: preference(label_smoothing=0.1, nll_coef=0.2)),
        "dpo-precomputed": (both, lambda: preference(label_smoothing=0.1, nll_coef=0.2, precompute=True)),
        "ipo": (both, lambda: preference(loss="ipo", length_normalized=True)),
        "kto": (kto.to_items(judged), judgement),
        "kd": (given, lambda: distillation(served=False)),
        "kd-served": (given, lambda: distillation(served=True)),
        "prm": (worked, lambda: process(soft=False)),
        "prm-soft": (worked, lambda: process(soft=True)),
    }


def configs(stages: str) -> dict[str, LearnerConfig]:
    """By name: each ZeRO stage, and without ZeRO every sequence over two ranks, where there are two."""
    optimizer = OptimizerConfig(lr=1e-30, max_grad_norm=0.0)
    found = {
        f"zero{stage}": LearnerConfig(dtype="float32", zero_stage=int(stage), optimizer=optimizer)
        for stage in stages.split(",")
    }
    if os.environ["WORLD_SIZE"] == "2":
        found["spread"] = found["zero0"].model_copy(update={"ranks": 2, "sequence_parallel": 2})
    return found


def averaged(policy: Path, config: LearnerConfig) -> torch.Tensor:
    """Held-out loss of the moving average after two steps, then of the weights themselves."""
    optimizer = OptimizerConfig(lr=1e-2, eps=1e-2)
    config = config.model_copy(update={"optimizer": optimizer, "ema_decay": 0.5, "ema_as_model": True})
    learner = Learner(load_causal_lm(policy, "float32"), config, total_steps=2, forward=sft.GreedyForward)
    objective = sft.SFTObjective(learner)
    items = [sft.to_item(example) for example in draw()[0]]
    for _ in range(2):
        objective.step(items)
    with learner.averaged():
        average = objective.measure(items)["loss"]
    return torch.tensor([average, objective.measure(items)["loss"]])


def main(policy: str, other: str, out: str, stages: str, address: str) -> None:
    found: dict[str, torch.Tensor] = {}
    for kind, config in configs(stages).items():
        for name, (items, make) in objectives(Path(policy), Path(other), config, address).items():
            objective = make()
            objective.prepare(items, [])
            learner = objective.learner
            assert isinstance(learner, Watched)
            splits = SPLITS if kind == "zero0" else SPLITS[2:]
            for packing, budget in splits:
                learner.config = learner.config.model_copy(update={"packing": packing, "micro_batch_tokens": budget})
                key = f"{name}/{kind}/{'packed' if packing else 'padded'}-{budget}"
                metrics = objective.step(items)
                found[key] = learner.gradient
                measured = objective.measure(items)
                found[f"{key}.loss"] = torch.tensor([metrics["loss"], measured["loss"], measured["accuracy"]])
            objective.close()
        found[f"average/{kind}"] = averaged(Path(policy), config)
    if torch.distributed.get_rank() == 0:
        save_file(found, out)


if __name__ == "__main__":
    main(*sys.argv[1:])
