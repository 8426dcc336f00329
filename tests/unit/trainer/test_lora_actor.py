"""An actor that trains adapters: its base is the reference, and what generation gets is merged."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from rlctl.learner.learner import Learner
from rlctl.learner.sequence import Sequence
from rlctl.models.load import load_causal_lm
from rlctl.reference.config import ReferenceConfig
from rlctl.reference.engine import ReferenceEngine
from rlctl.trainer.config import TrainerConfig
from rlctl.trainer.update import Updater
from rlctl.v1 import generation_pb2, journal_pb2, rollout_pb2
from support.tiny import tiny_llama
from support.training import plain_logprobs

RESPONSES = [[5, 6, 2], [7, 2], [8, 9, 10, 11], [12, 2]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("tiny"))


def samples() -> list[Sequence]:
    return [Sequence(torch.tensor([1, 20, 21]), torch.tensor(ids), torch.ones(len(ids), dtype=torch.bool))
            for ids in RESPONSES]  # fmt: skip


def order(reference: ReferenceEngine, step: int) -> bytes:
    settled = journal_pb2.SettledStep(step=step)
    task = rollout_pb2.PromptTask(id=rollout_pb2.GroupId(run="r"), prompt_ids=[1, 20, 21], needs_reference=True)
    group = rollout_pb2.RolloutGroup(task=task)
    for index, logprobs in enumerate(reference.logprobs(samples(), 1.0)):
        sample = generation_pb2.Sample(
            token_ids=RESPONSES[index], logprobs=[-4.0] * len(logprobs), policy_versions=[1],
            finish_reason="FINISH_REASON_STOP",
        )  # fmt: skip
        group.samples.add(sample=sample, reward=float(index), reference_logprobs=logprobs.tolist())
    settled.groups.append(group.SerializeToString())
    return journal_pb2.TrainOrder(settled=settled, beta=0.1).SerializeToString()


@pytest.mark.parametrize("quantize", [False, True], ids=["lora", "qlora"])
def test_the_base_is_the_reference_and_merged_weights_are_published(
    folder: Path, tmp_path: Path, quantize: bool
) -> None:
    config = TrainerConfig.model_validate({
        "sampling": {"prompts_per_step": 1, "n": 4, "max_new_tokens": 4},
        "advantage": {"estimator": "rloo"}, "kl": {"coef": 0.1},
        "actor": {"dtype": "float32", "optimizer": {"lr": 1e-2}, "zero_stage": 2,
                  "lora": {"rank": 4, "quantize_4bit": quantize}},
    })  # fmt: skip
    reference = ReferenceEngine(
        ReferenceConfig.model_validate({"model": str(folder), "dtype": "float32", "quantize_4bit": quantize})
    )
    actor = Learner(load_causal_lm(folder, "float32"), config.actor, total_steps=10)
    updater = Updater(config, actor, 0, 1, None)
    metrics = [updater.step(order(reference, step)) for step in range(4)]
    assert metrics[0]["kl/mean"] == pytest.approx(0, abs=1e-5)
    assert abs(metrics[-1]["kl/mean"]) > 1e-2
    # What goes to generation is the whole model under the names of the base, and gives the actor's log-probs.
    published = {name: tensor.clone() for name, tensor in actor.export_weights()}
    plain = AutoModelForCausalLM.from_pretrained(folder)
    assert published.keys() <= plain.state_dict().keys()
    plain.load_state_dict(published, strict=False)
    plain.tie_weights()
    unquantized = ReferenceEngine(ReferenceConfig.model_validate({"model": str(folder), "dtype": "float32"}))
    for sequence, given, base, full in zip(
        samples(), actor.logprobs(samples()), reference.logprobs(samples(), 1.0),
        unquantized.logprobs(samples(), 1.0), strict=True,
    ):  # fmt: skip
        torch.testing.assert_close(given, plain_logprobs(plain, sequence), rtol=1e-5, atol=1e-5)
        assert (given - base).abs().max() > 1e-2
        assert bool((base - full).abs().max() > 1e-3) == quantize
