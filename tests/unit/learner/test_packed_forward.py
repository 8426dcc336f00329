"""Packed, padded, bucketed, windowed: always the log-probs and gradients of the sequences alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from rlctl.core.errors import ConfigError
from rlctl.learner.batch import collate, plan
from rlctl.learner.forward import PolicyForward, split
from rlctl.learner.sequence import Sequence
from rlctl.models.load import load_causal_lm

CPU = torch.device("cpu")
LENGTHS = [(3, 5), (1, 1), (40, 110), (2, 9), (90, 20), (1, 70), (7, 1)]


def sequences() -> list[Sequence]:
    generator = torch.Generator().manual_seed(3)
    found = []
    for prompt, response in LENGTHS:
        ids = torch.randint(4, 60, (prompt + response,), generator=generator)
        found.append(Sequence(ids[:prompt], ids[prompt:], torch.ones(response, dtype=torch.bool)))
    return sorted(found, key=len, reverse=True)


def plain_logprobs(model: PreTrainedModel, found: list[Sequence], temperature: float) -> list[Tensor]:
    results = []
    for sequence in found:
        ids = torch.cat([sequence.prompt_ids, sequence.response_ids])
        logits = model(ids.unsqueeze(0)).logits[0, sequence.prompt_ids.numel() - 1 : -1] / temperature
        results.append(logits.log_softmax(-1).gather(-1, sequence.response_ids.unsqueeze(-1)).squeeze(-1))
    return results


def gradient(model: torch.nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_logprobs_and_gradients_equal_plain_transformers(tiny: Path, packing: bool, kernel: str) -> None:
    found = sequences()
    plain = AutoModelForCausalLM.from_pretrained(tiny)
    wanted = plain_logprobs(plain, found, 0.7)
    torch.stack([w.square().sum() for w in wanted]).sum().backward()
    model = load_causal_lm(tiny, "float32", kernel)
    batch = collate(found, packing=packing, trained_only=False, device=CPU)
    assert len(batch.layout.buckets) == (4 if packing else 0)
    outputs = PolicyForward(model, 16)(batch, 0.7)[0]
    for given, want in zip(split(outputs, batch), wanted, strict=True):
        torch.testing.assert_close(given, want, rtol=1e-5, atol=1e-5)
    outputs.square().sum().backward()
    expected = gradient(plain)
    assert float((gradient(model) - expected).norm() / expected.norm()) < 1e-5


def test_sliding_window_is_kept(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, use_sliding_window=True, sliding_window=8, max_window_layers=0, initializer_range=0.1,
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(tmp_path)
    found = sequences()
    plain = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    with torch.no_grad():
        wanted = plain_logprobs(plain, found, 1.0)
        for kernel in ("eager", "sdpa"):
            batch = collate(found, packing=True, trained_only=False, device=CPU)
            outputs = PolicyForward(load_causal_lm(tmp_path, "float32", kernel), 64)(batch)[0]  # type: ignore[arg-type]
            for given, want in zip(split(outputs, batch), wanted, strict=True):
                torch.testing.assert_close(given, want, rtol=0, atol=2e-5)


def test_attention_dropout_is_refused_in_training(tiny: Path) -> None:
    model = load_causal_lm(tiny, "float32")
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.1
    batch = collate(sequences(), packing=True, trained_only=False, device=CPU)
    with pytest.raises(ConfigError, match="dropout"):
        PolicyForward(model.train(), 64)(batch)


def test_entropy_is_that_of_the_tempered_distribution(tiny: Path) -> None:
    found = sequences()[-2:]
    batch = collate(found, packing=True, trained_only=False, device=CPU)
    entropies = split(PolicyForward(load_causal_lm(tiny, "float32"), 64)(batch, 0.5, True)[1], batch)
    plain = AutoModelForCausalLM.from_pretrained(tiny)
    for sequence, given in zip(found, entropies, strict=True):
        ids = torch.cat([sequence.prompt_ids, sequence.response_ids])
        logp = (plain(ids.unsqueeze(0)).logits[0, sequence.prompt_ids.numel() - 1 : -1] / 0.5).log_softmax(-1)
        torch.testing.assert_close(given, -(logp.exp() * logp).sum(-1), rtol=1e-5, atol=1e-5)


def test_bfloat16_agrees_with_float32_to_its_precision(tiny: Path) -> None:
    found = sequences()
    batch = collate(found, packing=True, trained_only=False, device=CPU)
    with torch.no_grad():
        exact = PolicyForward(load_causal_lm(tiny, "float32"), 64)(batch)[0]
        rounded = PolicyForward(load_causal_lm(tiny, "bfloat16"), 64)(batch)[0]
    assert float((rounded - exact).abs().mean()) < 3e-2


def of_length(length: int) -> Sequence:
    ids = torch.arange(length + 1)
    return Sequence(ids[:1], ids[1:length], torch.ones(length - 1, dtype=torch.bool))


def test_plan_keeps_the_budget_and_loses_nothing() -> None:
    lengths = [5, 9, 1, 7, 3, 30, 2]
    found = [of_length(length) for length in lengths]
    packed, padded = plan(found, 12, True), plan(found, 12, False)
    assert packed == [[5], [1], [3, 0], [4, 6, 2]]
    assert padded == [[5], [1], [3], [0, 4], [6, 2]]
    assert plan([], 12, True) == []


def test_only_trained_tokens_are_computed_when_asked() -> None:
    one = Sequence(torch.tensor([5, 6]), torch.tensor([7, 8, 9]), torch.tensor([True, False, True]))
    two = Sequence(torch.tensor([4]), torch.tensor([3]), torch.tensor([True]), {}, {})
    batch = collate([one, two], packing=True, trained_only=True, device=CPU)
    assert batch.targets_K.tolist() == [7, 9, 3]
    assert batch.states_K.tolist() == [1, 3, 5]
    assert batch.slots_K.tolist() == [0, 2, 3]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 4, 0, 1]]
    padded = collate([one, two], packing=False, trained_only=True, device=CPU)
    assert padded.input_ids.tolist() == [[5, 6, 7, 8, 9], [4, 3, 0, 0, 0]]
    assert padded.states_K.tolist() == [1, 3, 5]
