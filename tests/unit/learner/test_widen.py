"""Logits in float32 from a bfloat16 model."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from rlctl.models.widen import widen_head
from support.tiny import tiny_llama


def test_a_wide_head_does_not_round_its_logits(tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_llama(tmp_path), dtype=torch.bfloat16)
    tokens = torch.tensor([[1, 5, 6, 7]])
    with torch.no_grad():
        states = model.base_model(tokens).last_hidden_state
        rounded = model(tokens).logits
        widen_head(model)
        logits = model(tokens).logits
        exact = states.float() @ model.get_output_embeddings().weight.float().T
    assert (rounded.dtype, logits.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(logits, exact)
    assert not torch.equal(rounded.float(), logits)
