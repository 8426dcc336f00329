"""A float32 residual stream around bfloat16 layers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from rlctl.learner.config import LearnerConfig
from rlctl.learner.learner import Learner
from rlctl.learner.sequence import Sequence
from rlctl.models.load import load_causal_lm
from rlctl.models.residual import float_residual
from support.tiny import tiny_llama


def _load(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager")


def test_the_stream_is_wide_and_its_states_come_nearer_to_the_exact_ones(tmp_path: Path) -> None:
    """Sixteen layers, so that rounding adds up; one weight for all three models, which bfloat16 holds exactly."""
    folder = tiny_llama(tmp_path, layers=16)
    narrow, wide = (_load(folder, torch.bfloat16) for _ in range(2))
    exact = _load(folder, torch.float32)
    exact.load_state_dict({name: value.float() for name, value in narrow.state_dict().items()})
    float_residual(wide)
    tokens = torch.randint(4, 80, (8, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        truth = exact.base_model(tokens).last_hidden_state
        errors = [(model.base_model(tokens).last_hidden_state - truth).abs().mean() for model in (narrow, wide)]
        assert (
            wide.base_model.layers[3](
                wide.get_input_embeddings()(tokens),
                position_embeddings=wide.base_model.rotary_emb(truth, torch.arange(40)[None]),
            ).dtype
            is torch.float32
        )
        assert wide.base_model(tokens).last_hidden_state.dtype is torch.bfloat16
    assert errors[1] < 0.8 * errors[0]


def test_it_trains(tmp_path: Path) -> None:
    model = _load(tiny_llama(tmp_path), torch.bfloat16)
    float_residual(model)
    tokens = torch.randint(4, 80, (2, 12), generator=torch.Generator().manual_seed(0))
    model(tokens, labels=tokens).loss.backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())


def test_a_float32_model_is_left_as_it_is(tmp_path: Path) -> None:
    model = _load(tiny_llama(tmp_path), torch.float32)
    float_residual(model)
    assert not model.get_input_embeddings()._forward_hooks


def test_an_architecture_without_norms_in_front_is_refused(tmp_path: Path) -> None:
    from rlctl.core.errors import ConfigError

    model = _load(tiny_llama(tmp_path), torch.bfloat16)
    model.base_model.layers[0].input_layernorm = torch.nn.Identity()
    with pytest.raises(ConfigError, match="residual_float32: LlamaForCausalLM takes"):
        float_residual(model)


def test_the_learner_takes_it_packed_and_padded(tmp_path: Path) -> None:
    sequences = [
        Sequence(torch.tensor([1, 5, 6]), torch.tensor(range(7, 7 + size)), torch.ones(size, dtype=torch.bool))
        for size in (4, 9)
    ]
    logprobs = {}
    for packing in (True, False):
        config = LearnerConfig(dtype="bfloat16", zero_stage=0, packing=packing, residual_float32=True)
        model = load_causal_lm(tiny_llama(tmp_path), "bfloat16", "auto")
        logprobs[packing] = torch.cat(Learner(model, config, total_steps=1).logprobs(sequences))
    torch.testing.assert_close(logprobs[True], logprobs[False], atol=0.02, rtol=0)
