"""A step of every offline objective: the loss and gradient of plain transformers, however the step is split."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import logsigmoid
from transformers import AutoModelForCausalLM, PreTrainedModel

from rlctl.models.load import load_value_model
from rlctl.rpc.own import own_service
from support.offline_rank import BETA, COUNT, TOKENS, draw
from support.ranks import ROOT, run_ranks
from support.tiny import tiny_llama

pytestmark = pytest.mark.timeout(600)
SCRIPT = ROOT / "tests" / "support" / "offline_rank.py"
OBJECTIVES = ("sft", "rm", "dpo", "dpo-precomputed", "ipo", "kto", "kd", "kd-served", "prm", "prm-soft")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Policy, and the model it is compared with."""
    folder = tmp_path_factory.mktemp("models")
    return tiny_llama(folder / "policy", hidden=32, seed=1), tiny_llama(folder / "other", hidden=32, seed=2)


@pytest.fixture(scope="module")
def found(folders: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Tensor]]:
    """By objective, then by split: the gradient, and `.loss`: loss of the step, loss and accuracy of a measurement."""
    out = tmp_path_factory.mktemp("gradients")
    by_objective: dict[str, dict[str, Tensor]] = defaultdict(dict)
    with own_service("reference", {"model": str(folders[1]), "dtype": "float32"}, out / "reference.log") as teacher:
        for ranks, stages in ((1, "0"), (2, "0,3")):
            run_ranks(SCRIPT, ranks, *map(str, folders), str(out / f"{ranks}"), stages, teacher.address)
            for key, value in load_file(out / f"{ranks}").items():
                objective, split = key.split("/", 1)
                by_objective[objective][f"{ranks} ranks/{split}"] = value
    return by_objective


def logprobs(model: PreTrainedModel, prompt: list[int], response: list[int]) -> Tensor:
    """Of each response token."""
    logits = model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1).gather(-1, torch.tensor(response).unsqueeze(-1)).squeeze(-1)


def sft_by_hand(policy: PreTrainedModel, other: PreTrainedModel) -> Tensor:
    nats, tokens = torch.zeros(()), 0
    for example in draw()[0]:
        mask = torch.tensor(example.mask)
        nats = nats - logprobs(policy, example.prompt_ids, example.response_ids)[mask].sum()
        tokens += int(mask.sum())
    return nats / tokens


def dpo_by_hand(policy: PreTrainedModel, other: PreTrainedModel) -> Tensor:
    loss, nats, tokens = torch.zeros(()), torch.zeros(()), 0
    for pair in draw()[1]:
        chosen = logprobs(policy, pair.prompt_ids, pair.chosen_ids)
        with torch.no_grad():
            frozen = [logprobs(other, pair.prompt_ids, ids).sum() for ids in (pair.chosen_ids, pair.rejected_ids)]
        rejected = logprobs(policy, pair.prompt_ids, pair.rejected_ids)
        z = BETA * ((chosen.sum() - frozen[0]) - (rejected.sum() - frozen[1]))
        loss = loss - 0.9 * logsigmoid(z) - 0.1 * logsigmoid(-z)
        nats, tokens = nats - chosen.sum(), tokens + len(chosen)
    return loss / COUNT + 0.2 * nats / tokens


def ipo_by_hand(policy: PreTrainedModel, other: PreTrainedModel) -> Tensor:
    loss = torch.zeros(())
    for pair in draw()[1]:
        ratios = []
        for response in (pair.chosen_ids, pair.rejected_ids):
            with torch.no_grad():
                reference = logprobs(other, pair.prompt_ids, response).mean()
            ratios.append(logprobs(policy, pair.prompt_ids, response).mean() - reference)
        loss = loss + (ratios[0] - ratios[1] - 1 / (2 * BETA)) ** 2
    return loss / COUNT


def kto_by_hand(policy: PreTrainedModel, other: PreTrainedModel) -> Tensor:
    judged = draw()[2]

    def gap(prompt: list[int], response: list[int]) -> Tensor:
        with torch.no_grad():
            reference = logprobs(other, prompt, response).sum()
        return logprobs(policy, prompt, response).sum() - reference

    with torch.no_grad():
        mismatched = [gap(each.prompt_ids, judged[(i + 1) % COUNT].response_ids) for i, each in enumerate(judged)]
    kl = max(float(sum(mismatched)) / COUNT, 0.0)
    loss = torch.zeros(())
    for each in judged:
        distance = gap(each.prompt_ids, each.response_ids) - kl
        weight, sign = (1.5, 1.0) if each.desirable else (0.5, -1.0)
        loss = loss + weight * (1 - torch.sigmoid(BETA * sign * distance))
    return loss / COUNT


def kd_by_hand(policy: PreTrainedModel, other: PreTrainedModel) -> Tensor:
    loss, tokens = torch.zeros(()), 0
    for example in draw()[0]:
        ids, first = torch.tensor([example.prompt_ids + example.response_ids]), len(example.prompt_ids)
        mask, targets = torch.tensor(example.mask), torch.tensor(example.response_ids)
        student = policy(ids).logits[0, first - 1 : -1].log_softmax(-1)
        with torch.no_grad():
            teacher = other(ids).logits[0, first - 1 : -1].softmax(-1)
        hard = -student.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        loss = loss + (0.3 * hard - 0.7 * (teacher * student).sum(-1))[mask].sum()
        tokens += int(mask.sum())
    return loss / tokens


def prm_by_hand(policy: PreTrainedModel, soft: bool) -> Tensor:
    loss, steps = torch.zeros(()), 0
    for each in draw()[3]:
        logits = policy(torch.tensor([each.input_ids])).logits[0, each.positions][:, list(TOKENS)].log_softmax(-1)
        for (right, wrong), label in zip(logits, each.labels, strict=True):
            p = label if soft else float(label >= 0.5)
            loss, steps = loss - p * right - (1 - p) * wrong, steps + 1
    return loss / steps


BY_HAND = {
    "sft": sft_by_hand,
    "dpo": dpo_by_hand,
    "dpo-precomputed": dpo_by_hand,
    "ipo": ipo_by_hand,
    "kto": kto_by_hand,
    "kd": kd_by_hand,
    "kd-served": kd_by_hand,
    "prm": lambda policy, other: prm_by_hand(policy, soft=False),
    "prm-soft": lambda policy, other: prm_by_hand(policy, soft=True),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_loss_and_gradient_are_those_of_plain_transformers(found, folders, name):
    policy, other = (AutoModelForCausalLM.from_pretrained(folder) for folder in folders)
    loss = BY_HAND[name](policy, other)
    loss.backward()
    wanted = torch.cat([parameter.grad.flatten() for parameter in policy.parameters()])
    split = found[name]["1 ranks/zero0/padded-4096"]
    assert float((split - wanted).norm() / wanted.norm()) < 1e-5
    trained, measured, _ = found[name]["1 ranks/zero0/padded-4096.loss"].tolist()
    assert trained == pytest.approx(loss.item(), rel=1e-5)
    assert measured == pytest.approx(loss.item(), rel=1e-5)


def test_reward_model_reads_the_last_token(found, folders):
    head = load_value_model(folders[0], "float32", seed=0).score.weight[0]
    backbone = AutoModelForCausalLM.from_pretrained(folders[0]).model
    head = head.detach().clone().requires_grad_()
    loss, right = torch.zeros(()), 0
    for pair in draw()[1]:
        chosen, rejected = (
            backbone(torch.tensor([pair.prompt_ids + ids])).last_hidden_state[0, -1] @ head
            for ids in (pair.chosen_ids, pair.rejected_ids)
        )
        loss = loss - logsigmoid(chosen - rejected - pair.margin) / COUNT
        right += int(chosen > rejected)
    loss.backward()
    wanted = torch.cat([*(p.grad.flatten() for p in backbone.parameters()), head.grad])
    split = found["rm"]["1 ranks/zero0/padded-4096"]
    assert float((split - wanted).norm() / wanted.norm()) < 1e-5
    numbers = found["rm"]["1 ranks/zero0/padded-4096.loss"].tolist()
    assert numbers == pytest.approx([loss.item(), loss.item(), right / COUNT], rel=1e-5)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_gradient_and_measures_do_not_depend_on_the_split(found, name):
    by_split = found[name]
    wanted = by_split["1 ranks/zero0/padded-4096"]
    numbers = by_split["1 ranks/zero0/padded-4096.loss"]
    assert wanted.norm() > 1e-4
    # One rank; two ranks, with ZeRO-3, and with every sequence over both.
    assert len(by_split) == 2 * (4 + 4 + 2 + 2)
    for split, value in by_split.items():
        if split.endswith(".loss"):
            torch.testing.assert_close(value, numbers, rtol=1e-5, atol=1e-6, msg=lambda text, split=split: split + text)
        else:
            assert float((value - wanted).norm() / wanted.norm()) < 1e-5, split


def test_every_rank_measures_the_average(found):
    """Without ZeRO-3 rank 0 alone keeps it."""
    by_split = found["average"]
    assert set(by_split) == {"1 ranks/zero0", "2 ranks/zero0", "2 ranks/zero3", "2 ranks/spread"}
    wanted = by_split["1 ranks/zero0"]
    assert float(wanted[0] - wanted[1]) > 0.01  # the average lags behind
    for split, value in by_split.items():
        torch.testing.assert_close(value, wanted, rtol=1e-5, atol=1e-6, msg=lambda text, split=split: split + text)
