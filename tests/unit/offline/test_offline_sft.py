"""Supervised fine-tuning with a real DeepSpeed learner on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from rlctl.core.errors import FailedPreconditionError
from rlctl.data.config import SupervisedDataConfig
from rlctl.learner.config import LearnerConfig, OptimizerConfig
from rlctl.learner.learner import Learner
from rlctl.learner.sequence import Sequence
from rlctl.models.load import load_causal_lm, load_tokenizer
from rlctl.offline.config import AccuracyStop, OfflineLogConfig, SFTConfig
from rlctl.offline.run import train
from rlctl.offline.sft import GreedyForward, SFTObjective
from support.tiny import tiny_llama

PAIRS = [("a=", "xyz"), ("bb=", "q"), ("c=", "12"), ("dddd=", "w w")]
HELD_OUT = [("a=", "xyw"), ("bb=", "qq"), ("c=", "1"), ("dddd=", "w")]
LEARNER = LearnerConfig(
    dtype="float32", zero_stage=0, micro_batch_tokens=16, optimizer=OptimizerConfig(lr=3e-3, betas=(0.9, 0.95))
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_llama(tmp_path_factory.mktemp("tiny"), hidden=64)


def write(path: Path, pairs: list[tuple[str, str]]) -> SupervisedDataConfig:
    path.write_text("".join(json.dumps({"prompt": p, "label": r}) + "\n" for p, r in pairs))
    return SupervisedDataConfig(path=str(path))


def settings(folder: Path, tmp_path: Path, **changes) -> SFTConfig:
    base = {
        "name": "sft", "runs_dir": tmp_path, "model": str(folder), "steps": 60, "batch_size": 4, "eval_steps": 20,
        "data": [write(tmp_path / "train.jsonl", PAIRS)], "learner": LEARNER,
        "log": OfflineLogConfig(tensorboard=False),
    }  # fmt: skip
    return SFTConfig(**(base | changes))


def sequence(tokenizer, prompt: str, response: str) -> Sequence:
    ids = torch.tensor([*tokenizer(response).input_ids, tokenizer.eos_token_id])
    return Sequence(torch.tensor(tokenizer(prompt).input_ids), ids, torch.ones(len(ids), dtype=torch.bool))


def test_it_learns_its_examples_and_the_model_answers_in_plain_transformers(folder, tmp_path):
    seen = []
    held_out = write(tmp_path / "held-out.jsonl", HELD_OUT)
    end = train(settings(folder, tmp_path, eval_data=held_out, log=OfflineLogConfig()), seen.append)
    assert [reached.step for reached in seen] == [0, 20, 40, 60]
    assert seen[1].loss > 5 * seen[-1].loss
    assert (end.step, end.stopped) == (60, False)
    model_folder = tmp_path / "sft" / "model"
    tokenizer = load_tokenizer(model_folder)
    model = AutoModelForCausalLM.from_pretrained(model_folder)
    for prompt, response in PAIRS:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        answer = model.generate(ids, do_sample=False, max_new_tokens=6, pad_token_id=0)[0, ids.shape[1] :]
        assert tokenizer.decode(answer) == response + "</s>"
    assert not (tmp_path / "sft" / "model.tmp").exists()
    summary = json.loads((tmp_path / "sft" / "summary.json").read_text())
    assert (summary["job"], summary["status"], summary["steps"], summary["examples"]) == ("sft", "done", 60, 4)
    assert summary["loss"]["last"] < summary["loss"]["first"] / 5
    rows = [json.loads(line) for line in (tmp_path / "sft" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(60))
    assert rows[-1]["epoch"] == 60.0
    assert list((tmp_path / "sft" / "tensorboard").glob("events.*"))


def similar(tmp_path: Path) -> SupervisedDataConfig:
    """Held-out questions that are learnt with the trained ones: the same answers behind prompts one sign longer."""
    return write(tmp_path / "held-out.jsonl", [(" " + prompt, response) for prompt, response in PAIRS])


def test_it_stops_at_the_first_measurement_that_reaches_the_accuracy(folder, tmp_path):
    seen = []
    stop = AccuracyStop(accuracy=0.5, watch_above=0.0, watch_steps=1)
    end = train(settings(folder, tmp_path, eval_data=similar(tmp_path), stop=stop, eval_steps=5), seen.append)
    accuracies = [reached.held_out["accuracy"] for reached in seen]
    assert end.step == seen[-1].step
    assert accuracies[-1] >= 0.5 > max(accuracies[:-1], default=0.0)
    assert end.step < 60
    # Every fifth step until the first example is right, then every step.
    steps = [reached.step for reached in seen]
    begun = next(index for index, accuracy in enumerate(accuracies) if accuracy > 0)
    assert steps[: begun + 1] == [5 * index for index in range(begun + 1)]
    assert steps[begun:] == list(range(steps[begun], end.step + 1))
    # It is done: gone on with, it takes no further step.
    again = train(settings(folder, tmp_path, eval_data=similar(tmp_path), stop=stop, eval_steps=5))
    assert again.step == end.step


def test_an_accuracy_that_is_not_reached_is_an_error(folder, tmp_path):
    config = settings(folder, tmp_path, eval_data=similar(tmp_path), stop=AccuracyStop(accuracy=0.9), steps=2)
    with pytest.raises(FailedPreconditionError, match=r"did not reach 0\.9 in 2 steps"):
        train(config)
    assert not (tmp_path / "sft" / "model").exists()


def test_a_stop_needs_something_to_measure_on(folder, tmp_path):
    with pytest.raises(ValueError, match="stop needs eval_data"):
        settings(folder, tmp_path, stop=AccuracyStop(accuracy=0.5))


def test_the_loss_is_the_mean_over_response_tokens_alone(folder):
    tokenizer = load_tokenizer(folder)
    sequences = [sequence(tokenizer, prompt, response) for prompt, response in PAIRS]
    plain = AutoModelForCausalLM.from_pretrained(folder)
    nats, tokens = 0.0, 0
    for each in sequences:
        ids = torch.cat([each.prompt_ids, each.response_ids]).unsqueeze(0)
        labels = ids.clone()
        labels[0, : len(each.prompt_ids)] = -100
        with torch.no_grad():
            nats += plain(input_ids=ids, labels=labels).loss.item() * len(each.response_ids)
        tokens += len(each.response_ids)
    objective = SFTObjective(Learner(load_causal_lm(folder, "float32"), LEARNER, total_steps=1, forward=GreedyForward))
    items = [[each] for each in sequences]
    assert objective.measure(items)["loss"] == pytest.approx(nats / tokens, rel=1e-5)
    assert objective.step(items)["loss"] == pytest.approx(nats / tokens, rel=1e-5)


def test_the_measured_accuracy_is_that_of_greedy_decoding(folder, tmp_path):
    """Half learnt, so that some answers are right and others are not."""
    tokenizer = load_tokenizer(folder)
    train(settings(folder, tmp_path, steps=8))
    model_folder = tmp_path / "sft" / "model"
    sequences = [sequence(tokenizer, prompt, response) for prompt, response in PAIRS]
    plain = AutoModelForCausalLM.from_pretrained(model_folder)
    right = 0
    for each in sequences:
        made = plain.generate(each.prompt_ids.unsqueeze(0), do_sample=False, max_new_tokens=6, pad_token_id=0)
        right += made[0, len(each.prompt_ids) :].tolist() == each.response_ids.tolist()
    assert 0 < right < len(PAIRS)
    for packing in (True, False):
        learner = LEARNER.model_copy(update={"packing": packing})
        model = load_causal_lm(model_folder, "float32")
        objective = SFTObjective(Learner(model, learner, total_steps=1, forward=GreedyForward))
        assert objective.measure([[each] for each in sequences])["accuracy"] == right / len(PAIRS)


def test_the_same_seed_gives_the_same_model_bit_for_bit(folder, tmp_path):
    for name in ("one", "two"):
        train(settings(folder, tmp_path, name=name, steps=5, batch_size=2))
    one, two = ((tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("one", "two"))
    assert one == two
