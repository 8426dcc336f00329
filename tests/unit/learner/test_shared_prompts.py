"""Sequences of one prompt: its tokens are computed once, and nothing else changes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from rlctl.learner.batch import MicroBatch, collate, plan
from rlctl.learner.forward import PolicyForward, ValueForward, split
from rlctl.learner.prompts import can_share
from rlctl.learner.sequence import Sequence
from rlctl.models.load import load_causal_lm, load_value_model
from rlctl.models.rows import Repeats, take

CPU = torch.device("cpu")
#: Prompts by number, and the lengths of their responses, mixed as ranks and budgets mix them.
PROMPTS = {"a": 12, "b": 40, "c": 1}
RESPONSES = [("a", 5), ("b", 30), ("a", 90), ("c", 3), ("b", 1), ("a", 5), ("c", 70)]


def sequences(trained: float = 1.0) -> list[Sequence]:
    generator = torch.Generator().manual_seed(7)
    prompts = {name: torch.randint(4, 60, (length,), generator=generator) for name, length in PROMPTS.items()}
    found = []
    for name, length in RESPONSES:
        ids = torch.randint(4, 60, (length,), generator=generator)
        mask = torch.rand(length, generator=generator) < trained
        found.append(Sequence(prompts[name].clone(), ids, mask))
    return sorted(found, key=len, reverse=True)


def batch_of(found: list[Sequence], shared: bool, trained_only: bool = False) -> MicroBatch:
    return collate(found, packing=True, trained_only=trained_only, device=CPU, shared=shared)


def gradient(model: nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
@pytest.mark.parametrize("trained", [1.0, 0.6])
def test_logprobs_and_gradients_equal_plain_transformers(tiny: Path, kernel: str, trained: float) -> None:
    found = sequences(trained)
    plain = AutoModelForCausalLM.from_pretrained(tiny)
    wanted = []
    for sequence in found:
        ids = torch.cat([sequence.prompt_ids, sequence.response_ids])
        logp = plain(ids.unsqueeze(0)).logits[0, sequence.prompt_ids.numel() - 1 : -1].log_softmax(-1)
        chosen = logp.gather(-1, sequence.response_ids.unsqueeze(-1)).squeeze(-1)
        wanted.append(chosen[sequence.mask])
    torch.cat(wanted).square().sum().backward()
    model = load_causal_lm(tiny, "float32", kernel)  # type: ignore[arg-type]
    batch = batch_of(found, True, trained_only=True)
    assert batch.input_ids.numel() == sum(PROMPTS.values()) + sum(length for _, length in RESPONSES)
    assert len(batch.layout.buckets) > 1
    outputs = PolicyForward(model, 16)(batch)[0]
    torch.testing.assert_close(outputs, torch.cat(wanted), rtol=1e-5, atol=1e-5)
    outputs.square().sum().backward()
    assert float((gradient(model) - gradient(plain)).norm() / gradient(plain).norm()) < 1e-5


def test_values_and_gradients_equal_those_of_unshared_prompts(tiny: Path) -> None:
    found = sequences()
    results = []
    for shared in (True, False):
        model = load_value_model(tiny, "float32", "eager", seed=1)
        values = ValueForward(model)(batch_of(found, shared))[0]
        values.square().sum().backward()
        results.append((values.detach(), gradient(model)))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-5, atol=1e-5)
    assert float((results[0][1] - results[1][1]).norm() / results[1][1].norm()) < 1e-5


def test_one_bucket_of_shared_rows(tiny: Path) -> None:
    """All rows alike: as many tokens in the rows as would lie in an unshared row of the same bucket."""
    prompt = torch.arange(5, 15)
    found = [Sequence(prompt, torch.arange(20 + n, 26 + n), torch.ones(6, dtype=torch.bool)) for n in range(4)]
    model = PolicyForward(load_causal_lm(tiny, "float32", "eager"), 16)
    shared, alone = batch_of(found, True), batch_of(found, False)
    assert len(shared.layout.buckets) == 1 and shared.input_ids.numel() == 10 + 24
    for given, want in zip(split(model(shared)[0], shared), split(model(alone)[0], alone), strict=True):
        torch.testing.assert_close(given, want, rtol=1e-5, atol=1e-5)


def test_a_plan_pays_for_a_prompt_once_a_micro_batch() -> None:
    found = sequences()
    everything = sum(PROMPTS.values()) + sum(length for _, length in RESPONSES)
    assert len(plan(found, everything, True, shared=True)) == 1
    assert len(plan(found, everything, True)) > 1
    for batch in plan(found, 130, True, shared=True):
        paid = batch_of([found[index] for index in batch], True).input_ids.numel()
        assert paid <= 130 or len(batch) == 1
        assert [len(found[index]) for index in batch] == sorted((len(found[i]) for i in batch), reverse=True)
    assert sorted(index for batch in plan(found, 130, True, shared=True) for index in batch) == list(range(7))


def test_pairs_stay_together_and_pay_for_their_prompt_once() -> None:
    prompt, other = torch.arange(10), torch.arange(1, 11)
    mask = torch.ones(3, dtype=torch.bool)
    pairs = [Sequence(p, torch.arange(3), mask) for p in (prompt, prompt, other, other, prompt, prompt)]
    assert plan(pairs, 22, True, 2, True) == [[0, 1, 4, 5], [2, 3]]
    assert plan(pairs, 21, True, 2, True) == [[0, 1], [4, 5], [2, 3]]


def test_a_long_prompt_with_many_short_responses_bounds_the_rows_of_attention() -> None:
    """256 responses to one prompt would be 52 times the budget in attention's rows."""
    prompt, mask = torch.arange(4, 404) % 60, torch.ones(4, dtype=torch.bool)
    found = [Sequence(prompt, torch.arange(4), mask) for _ in range(256)]
    batches = plan(found, 2048, True, shared=True)
    cells = [
        sum(bucket.rows * bucket.length for bucket in batch_of([found[i] for i in each], True).layout.buckets)
        for each in batches
    ]
    assert max(cells) <= 4 * 2048
    assert len(batches) == 13
    assert len(plan(found[:1], 16, True, shared=True)) == 1


def test_repeats_sum_their_gradients() -> None:
    index = torch.tensor([3, 0, 3, 1, 3, 1])
    repeats = Repeats.of(index)
    assert repeats is not None
    x = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: take(x, index, repeats), (x,))
    assert Repeats.of(torch.tensor([2, 0, 1])) is None


def test_sharing_is_for_attention_that_knows_of_it(tiny: Path) -> None:
    config = load_causal_lm(tiny, "float32", "sdpa").config
    assert can_share(config, True) and not can_share(config, False)
    config.rlctl_kernel = "ring"
    assert not can_share(config, True)
