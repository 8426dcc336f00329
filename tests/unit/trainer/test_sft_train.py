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
from rlctl.trainer.sft import objective, train_sft
from rlctl.trainer.sft_config import AccuracyStop, SFTConfig
from rlctl.trainer.sft_eval import measure
from support.tiny import tiny_llama

PAIRS = [("a=", "xyz"), ("bb=", "q"), ("c=", "12"), ("dddd=", "w w")]
LEARNER = LearnerConfig(
    dtype="float32", zero_stage=0, micro_batch_tokens=16, optimizer=OptimizerConfig(lr=3e-3, betas=(0.9, 0.95))
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_llama(tmp_path_factory.mktemp("tiny"), hidden=64)


def settings(folder: Path, output: Path, **changes) -> SFTConfig:
    path = output.parent / "pairs.jsonl"
    path.write_text("".join(json.dumps({"prompt": p, "label": r}) + "\n" for p, r in PAIRS))
    data = SupervisedDataConfig(path=str(path))
    base = {
        "model": str(folder), "output": output, "steps": 60, "batch_size": 4, "data": [data], "eval_data": data,
        "eval_steps": 20, "learner": LEARNER,
    }  # fmt: skip
    return SFTConfig(**(base | changes))


def sequence(tokenizer, prompt: str, response: str) -> Sequence:
    ids = torch.tensor([*tokenizer(response).input_ids, tokenizer.eos_token_id])
    return Sequence(torch.tensor(tokenizer(prompt).input_ids), ids, torch.ones(len(ids), dtype=torch.bool))


def test_it_learns_its_examples_and_the_model_answers_in_plain_transformers(folder, tmp_path):
    seen = []
    end = train_sft(settings(folder, tmp_path / "model"), seen.append)
    assert [progress.step for progress in seen] == [20, 40, 60]
    assert seen[0].loss > 5 * seen[-1].loss
    assert end.held_out is not None
    assert end.held_out.accuracy == 1.0
    assert end.held_out.n == len(PAIRS)
    tokenizer = load_tokenizer(tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    for prompt, response in PAIRS:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        answer = model.generate(ids, do_sample=False, max_new_tokens=6, pad_token_id=0)[0, ids.shape[1] :]
        assert tokenizer.decode(answer) == response + "</s>"
    assert not (tmp_path / "model.tmp").exists()


def test_it_stops_at_the_first_measurement_that_reaches_the_accuracy(folder, tmp_path):
    seen = []
    stop = AccuracyStop(accuracy=0.5, watch_above=0.0, watch_steps=1)
    end = train_sft(settings(folder, tmp_path / "model", stop=stop, eval_steps=5), seen.append)
    accuracies = [progress.held_out.accuracy for progress in seen]
    assert end == seen[-1]
    assert accuracies[-1] >= 0.5 > max(accuracies[:-1], default=0.0)
    assert end.step < 60
    # Every fifth step until the first example is right, then every step.
    steps = [progress.step for progress in seen]
    begun = next(index for index, accuracy in enumerate(accuracies) if accuracy > 0)
    assert steps[: begun + 1] == [5 * (index + 1) for index in range(begun + 1)]
    assert steps[begun:] == list(range(steps[begun], end.step + 1))


def test_an_accuracy_that_is_not_reached_is_an_error(folder, tmp_path):
    stop = AccuracyStop(accuracy=0.9)
    with pytest.raises(FailedPreconditionError, match=r"did not reach 0\.9 in 2 steps"):
        train_sft(settings(folder, tmp_path / "model", stop=stop, steps=2), lambda progress: None)
    assert not (tmp_path / "model").exists()


def test_a_stop_needs_something_to_measure_on(folder, tmp_path):
    with pytest.raises(ValueError, match="stop needs eval_data"):
        settings(folder, tmp_path / "model", stop=AccuracyStop(accuracy=0.5), eval_data=None)


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
    learner = Learner(load_causal_lm(folder, "float32"), LEARNER, total_steps=1)
    assert learner.step(sequences, objective)["loss"] == pytest.approx(nats / tokens, rel=1e-5)


def test_the_measured_accuracy_is_that_of_greedy_decoding(folder, tmp_path):
    """Half learnt, so that some answers are right and others are not."""
    tokenizer = load_tokenizer(folder)
    config = settings(folder, tmp_path / "model", steps=8, eval_data=None)
    train_sft(config, lambda progress: None)
    model = load_causal_lm(tmp_path / "model", "float32")
    sequences = [sequence(tokenizer, prompt, response) for prompt, response in PAIRS]
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    right = 0
    for each in sequences:
        made = plain.generate(each.prompt_ids.unsqueeze(0), do_sample=False, max_new_tokens=6, pad_token_id=0)
        right += made[0, len(each.prompt_ids) :].tolist() == each.response_ids.tolist()
    assert 0 < right < len(PAIRS)
    for packing in (True, False):
        measured = measure(model, sequences, LEARNER.model_copy(update={"packing": packing}))
        assert measured.accuracy == right / len(PAIRS)


def test_the_same_seed_gives_the_same_model_bit_for_bit(folder, tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        train_sft(settings(folder, tmp_path / name / "model", steps=5, batch_size=2), lambda progress: None)
    one, two = ((tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("one", "two"))
    assert one == two
