"""Held-out loss and accuracy of a language model on given responses.

K response tokens of a micro-batch, D hidden size, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlctl.learner.batch import MicroBatch, collate, plan
from rlctl.learner.config import LearnerConfig
from rlctl.learner.sequence import Sequence
from rlctl.models.attention import take


@dataclass(frozen=True)
class HeldOut:
    """What a model makes of held-out examples."""

    loss: float
    """Mean cross-entropy of a response token, nats."""
    accuracy: float
    """Share of examples whose response greedy decoding gives token for token, EOS included."""
    n: int
    """Examples."""


@torch.no_grad()
def measure(model: PreTrainedModel, sequences: list[Sequence], config: LearnerConfig) -> HeldOut:
    """Loss and accuracy in one forward pass over each response.

    Greedy decoding gives a response exactly when each of its tokens is the likeliest after those before it, so
    nothing needs to be sampled. Every rank measures all examples, in the same passes.
    """
    model.eval()
    device = next(model.parameters()).device
    nats, tokens, right = 0.0, 0, 0
    for indices in plan([len(s) for s in sequences], config.micro_batch_tokens, config.packing):
        chosen = [sequences[index] for index in indices]
        batch = collate(chosen, packing=config.packing, trained_only=False, device=device)
        loss_K, right_K = _score(model, batch, config.logits_chunk)
        nats, tokens = nats + float(loss_K.sum()), tokens + len(loss_K)
        lengths = batch.lengths_B.tolist()
        right += sum(bool(part.all()) for part in right_K.split(lengths))
    return HeldOut(nats / tokens, right / len(sequences), len(sequences))


def _score(model: PreTrainedModel, batch: MicroBatch, chunk: int) -> tuple[Tensor, Tensor]:
    """Cross-entropy, and whether the token is the likeliest, of each response token: `[K]` each."""
    flash = model.config._attn_implementation == "flash_attention_2"
    hidden = model.base_model(
        input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False, **batch.attention_inputs(flash)
    ).last_hidden_state
    states_KD = take(hidden.flatten(0, 1), batch.states_K)
    head = model.get_output_embeddings()
    losses, right = [], []
    for states_CD, targets_C in zip(states_KD.split(chunk), batch.targets_K.split(chunk), strict=True):
        logits_CV = head(states_CD).float()
        losses.append(torch.nn.functional.cross_entropy(logits_CV, targets_C, reduction="none"))
        right.append(logits_CV.argmax(-1) == targets_C)
    return torch.cat(losses), torch.cat(right)
