"""The same optimizer step has the same gradient however it is split (relative L2 of 1e-5 in float32)."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from support.ranks import ROOT, run_ranks
from support.tiny import tiny_llama

pytestmark = pytest.mark.timeout(600)
SCRIPT = ROOT / "tests" / "support" / "gradient_rank.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gradients")


@pytest.fixture(scope="module")
def gradients(folder: Path) -> dict[str, dict[str, Tensor]]:
    """By loss, then by split; one and two ranks, ZeRO 0 to 3."""
    model = tiny_llama(folder / "model", hidden=32)
    by_loss: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for ranks, stages in ((1, "0,1,2,3"), (2, "0,1,2,3")):
        out = folder / f"{ranks}.safetensors"
        run_ranks(SCRIPT, ranks, str(model), str(out), stages)
        for key, gradient in load_file(out).items():
            loss, split = key.split("/", 1)
            by_loss[loss][f"{ranks} ranks/{split}"] = gradient
    return by_loss


#: Tried with ZeRO 0 to 3 on one and two ranks; the others without ZeRO on one rank.
USUAL = ("ppo-token", "gspo-sequence", "cispo-constant", "reinforce-token", "entropy", "value")
KINDS, AGGREGATIONS = ("ppo", "gspo", "cispo", "reinforce"), ("token", "sequence", "constant")
LOSSES = [f"{kind}-{aggregation}" for kind in KINDS for aggregation in AGGREGATIONS]


@pytest.mark.parametrize("loss", [*LOSSES, "entropy", "value"])
def test_gradient_does_not_depend_on_the_split(gradients: dict[str, dict[str, Tensor]], loss: str) -> None:
    found = gradients[loss]
    wanted = found["1 ranks/zero0/padded-4096"]
    assert wanted.norm() > 1e-3
    vectors = {name: gradient for name, gradient in found.items() if not name.endswith((".norm", ".loss"))}
    assert len(vectors) == 4 + (7 * 2 if loss in USUAL else 0)
    off = {name: float((gradient - wanted).norm() / wanted.norm()) for name, gradient in vectors.items()}
    assert max(off.values()) < 1e-5, {name: value for name, value in off.items() if value >= 1e-5}


@pytest.mark.parametrize("loss", ["ppo-token", "gspo-sequence", "value"])
def test_reported_norm_and_loss_are_those_of_the_whole_step(gradients: dict[str, dict[str, Tensor]], loss: str) -> None:
    found = gradients[loss]
    norm, total = found["1 ranks/zero0/padded-4096"].norm(), found["1 ranks/zero0/padded-4096.loss"]
    for name, number in found.items():
        if name.endswith(".norm"):
            torch.testing.assert_close(number[0], norm, rtol=1e-4, atol=0)
        if name.endswith(".loss"):
            torch.testing.assert_close(number, total, rtol=1e-4, atol=1e-6)


def test_gradient_equals_that_of_plain_transformers(gradients: dict[str, dict[str, Tensor]], tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    from support.gradient_rank import sequences

    model = AutoModelForCausalLM.from_pretrained(tiny_llama(tmp_path / "model", hidden=32))
    total = sum(int(s.mask.sum()) for s in sequences())
    loss = torch.zeros(())
    for s in sequences():
        ids = torch.cat([s.prompt_ids, s.response_ids])
        logits = model(ids.unsqueeze(0)).logits[0, s.prompt_ids.numel() - 1 : -1] / 0.7
        logprobs = logits.log_softmax(-1).gather(-1, s.response_ids.unsqueeze(-1)).squeeze(-1)
        loss = loss - (logprobs * s.fields["advantages"])[s.mask].sum() / total
    loss.backward()
    wanted = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    found = gradients["reinforce-token"]["1 ranks/zero0/padded-4096"]
    assert float((found - wanted).norm() / wanted.norm()) < 1e-5


def test_zero3_on_two_ranks_exports_whole_weights(gradients: dict[str, dict[str, Tensor]], folder: Path) -> None:
    wanted, found = load_file(folder / "model" / "model.safetensors"), load_file(folder / "2" / "model.safetensors")
    assert found.keys() == wanted.keys()
    for name in wanted:  # a weight of exactly 0 moves by the learning rate of 1e-30
        torch.testing.assert_close(found[name], wanted[name], rtol=0, atol=1e-25)
