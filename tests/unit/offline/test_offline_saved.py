"""What is saved loads in plain transformers, and gives what the trainer measured."""

from __future__ import annotations

import asyncio
import json

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from rlctl.core.config import validate
from rlctl.core.errors import ConfigError
from rlctl.data.config import PreferenceDataConfig, ProcessDataConfig
from rlctl.data.preference import load_preferences
from rlctl.data.process import load_process, reward_tokens
from rlctl.models.load import load_tokenizer, load_value_model
from rlctl.offline import rm
from rlctl.offline.config import ProcessConfig
from rlctl.offline.run import train
from rlctl.reward.model_scorer import ModelScorer
from rlctl.reward.scorer import Item
from support.offline import KEYS, rows, settings
from support.tiny import tiny_llama

CHANGED = {"steps": 10, "eval_steps": 0}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return tiny_llama(folder / "policy", hidden=32), tiny_llama(folder / "teacher", hidden=32, seed=5)


def run(tree):
    return train(validate(ProcessConfig, {"run": tree}).run)


def test_a_reward_model_is_a_classifier_that_scores_padded_batches(models, tmp_path):
    """Its accuracy, mean and deviation on the held-out pairs are those measured in training."""
    end = run(settings("rm", *models, tmp_path, **CHANGED))
    folder = tmp_path / "runs" / "rm" / "model"
    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert model.config.pad_token_id == tokenizer.pad_token_id != tokenizer.eos_token_id
    assert model.config.num_labels == 1
    data = load_preferences(PreferenceDataConfig(path=str(tmp_path / "held-out.jsonl")), load_tokenizer(folder))
    texts = [pair.prompt_ids + ids for pair in data for ids in (pair.chosen_ids, pair.rejected_ids)]
    longest = max(map(len, texts))
    padded = torch.tensor([ids + [tokenizer.pad_token_id] * (longest - len(ids)) for ids in texts])
    with torch.no_grad():
        scores = model(padded, attention_mask=(padded != tokenizer.pad_token_id).long()).logits.squeeze(-1)
    chosen, rejected = scores[0::2], scores[1::2]
    measured = end.held_out
    assert measured["accuracy"] == int((chosen > rejected).sum()) / len(data)
    assert measured["reward_mean"] == pytest.approx(scores.mean().item(), abs=1e-5)
    assert measured["reward_std"] == pytest.approx(scores.std(correction=0).item(), abs=1e-5)
    assert (model.config.mean, model.config.std) == (measured["reward_mean"], measured["reward_std"])


def test_the_reward_service_gives_the_scores_of_training(models, tmp_path):
    """From texts that it tokenises itself; standardised, those of the held-out pairs have mean 0 and deviation 1."""
    run(settings("rm", *models, tmp_path, **CHANGED))
    scorer = ModelScorer(
        str(tmp_path / "runs" / "rm" / "model"), "float32", max_length=128, batch_tokens=256, normalize=True,
        trust_remote_code=False,
    )  # fmt: skip
    texts = [(row["prompt"], row[side]) for row in rows(40, 5) for side in ("chosen", "rejected")]

    async def score():
        await scorer.load()
        outcomes = await scorer.score([Item(prompt, response) for prompt, response in texts])
        await scorer.close()
        return outcomes

    rewards = torch.tensor([outcome.reward for outcome in asyncio.run(score())])
    assert rewards.mean().item() == pytest.approx(0, abs=1e-4)
    assert rewards.std(correction=0).item() == pytest.approx(1, abs=1e-4)


def test_a_pad_that_is_the_eos_is_replaced(models, tmp_path):
    """By another special token where there is one, else by a new one, for which the model gets an embedding."""
    model = load_value_model(models[0], "float32", seed=0)
    had = model.backbone.get_input_embeddings().num_embeddings
    tokenizer = AutoTokenizer.from_pretrained(models[0])
    tokenizer.pad_token = tokenizer.eos_token
    rm.choose_pad(tokenizer, model)
    assert tokenizer.pad_token == "<unk>"
    for name in ("unk_token", "pad_token"):
        setattr(tokenizer, name, tokenizer.eos_token)
    rm.choose_pad(tokenizer, model)
    assert tokenizer.pad_token == "<|pad|>"
    assert model.backbone.get_input_embeddings().num_embeddings == max(had, tokenizer.pad_token_id + 1)
    assert tokenizer.pad_token_id != tokenizer.eos_token_id


def test_a_process_reward_model_judges_with_its_reward_tokens(models, tmp_path):
    end = run(settings("prm", *models, tmp_path, **CHANGED))
    folder = tmp_path / "runs" / "prm" / "model"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), load_tokenizer(folder)
    config = ProcessDataConfig(path=str(tmp_path / "held-out.jsonl"), **KEYS["prm"])
    right, wrong = reward_tokens(config, tokenizer)
    hits, nats = [], []
    for steps in load_process(config, tokenizer):
        with torch.no_grad():
            logits = model(torch.tensor([steps.input_ids])).logits[0, steps.positions][:, [right, wrong]]
        for pair, label in zip(logits.log_softmax(-1), steps.labels, strict=True):
            hits.append((pair[0] > pair[1]).item() == (label == 1.0))
            nats.append(-pair[0 if label == 1.0 else 1].item())
    assert end.held_out["accuracy"] == sum(hits) / len(hits)
    assert end.held_out["loss"] == pytest.approx(sum(nats) / len(nats), rel=1e-5)


@pytest.mark.parametrize(
    ("job", "average"),
    [("dpo", {}), ("kto", {}), ("kd", {}), ("dpo", {"ema_decay": 0.8, "ema_as_model": True})],
)
def test_policies_load_and_give_the_same_measures_again(models, tmp_path, job, average):
    """Measured once more as a run's first weights, against the same other model: what was measured is what is saved,
    where that is the moving average too."""
    tree = settings(job, *models, tmp_path, **CHANGED)
    tree["learner"] = tree.get("learner", {}) | average
    if job != "kd":
        tree["reference"] = tree.get("reference", {}) | {"model": str(models[0])}
    end = run(tree)
    saved = tmp_path / "runs" / job / "model"
    assert AutoModelForCausalLM.from_pretrained(saved).config.vocab_size == 80
    seen = []
    again = tree | {"name": "again", "model": str(saved), "steps": 1}
    train(validate(ProcessConfig, {"run": again}).run, seen.append)
    assert seen[0].held_out == pytest.approx(end.held_out, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("job", ["sft", "rm"])
def test_the_chat_template_of_the_data_is_saved_with_the_model(models, tmp_path, job):
    """So that whoever chats with it, or scores with it, writes prompts as in training."""
    template = "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}"
    tree = settings(job, *models, tmp_path, steps=1, eval_steps=0)
    chat = {"apply_chat_template": True, "chat_template": template}
    tree |= {"data": [tree["data"][0] | chat], "eval_data": tree["eval_data"] | chat}
    run(tree)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "runs" / job / "model")
    assert tokenizer.chat_template == template
    assert (tokenizer.pad_token_id != tokenizer.eos_token_id) or job != "rm"


def test_a_chat_template_whose_file_goes_while_training_is_saved_all_the_same(models, tmp_path):
    path = tmp_path / "template.jinja"
    path.write_text("{% for m in messages %}({{ m['content'] }}){% endfor %}")
    tree = settings("sft", *models, tmp_path, steps=1, eval_steps=0)
    chat = {"apply_chat_template": True, "chat_template": str(path)}
    tree |= {"data": [tree["data"][0] | chat], "eval_data": tree["eval_data"] | chat}
    train(validate(ProcessConfig, {"run": tree}).run, stop=lambda: bool(path.unlink(missing_ok=True)))
    assert not path.exists()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "runs" / "sft" / "model")
    assert tokenizer.chat_template == "{% for m in messages %}({{ m['content'] }}){% endfor %}"


def test_a_teacher_with_another_vocabulary_is_refused(models, tmp_path):
    tree = settings("kd", *models, tmp_path)
    other = tiny_llama(tmp_path / "other", hidden=32)
    path = other / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocab = tokenizer["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    path.write_text(json.dumps(tokenizer))
    with pytest.raises(ConfigError, match="its tokenizer is another one than the model's"):
        run(tree | {"teacher": str(other)})
    config = json.loads((models[1] / "config.json").read_text())
    wider = AutoModelForCausalLM.from_pretrained(models[1])
    wider.resize_token_embeddings(config["vocab_size"] + 5)
    wider.save_pretrained(tmp_path / "wider")
    load_tokenizer(models[1]).save_pretrained(tmp_path / "wider")
    with pytest.raises(ConfigError, match=r"its vocabulary has 85 tokens and the model's 80"):
        run(tree | {"teacher": str(tmp_path / "wider"), "name": "wider"})


def test_lora_trains_every_job_and_saves_the_merged_model(models, tmp_path):
    before = AutoModelForCausalLM.from_pretrained(models[0]).state_dict()
    for job in ("sft", "dpo", "kd", "prm"):
        tree = settings(job, *models, tmp_path / job, steps=3, eval_steps=0)
        tree["learner"] = tree["learner"] | {"lora": {"rank": 4, "alpha": 8}}
        run(tree)
        after = AutoModelForCausalLM.from_pretrained(tmp_path / job / "runs" / job / "model").state_dict()
        moved = {name for name in before if not torch.equal(before[name], after[name])}
        assert moved == {name for name in before if "_proj" in name}, job
    tree = settings("rm", *models, tmp_path / "rm", steps=3, eval_steps=0)
    tree["learner"] = tree["learner"] | {"lora": {"rank": 4, "alpha": 8}}
    run(tree)
    folder = tmp_path / "rm" / "runs" / "rm" / "model"
    first = load_value_model(models[0], "float32", seed=3).score.weight
    assert not torch.equal(AutoModelForSequenceClassification.from_pretrained(folder).score.weight, first)
