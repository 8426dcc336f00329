"""The frozen model's distributions at the response tokens of a micro-batch."""

from __future__ import annotations

from torch import Tensor, cat

from rlctl.algorithms.distill import Told, tell
from rlctl.algorithms.logprobs import CHUNK_ELEMENTS
from rlctl.learner.batch import MicroBatch
from rlctl.learner.forward import LogprobHead, PolicyForward, backbone_states, split


def distributions(policy: PolicyForward, batch: MicroBatch, temperature: float, top_k: int) -> list[Told]:
    """One entry a sequence of a batch that wants all response tokens, on the CPU; see `tell` for `top_k`.

    In fp32 from the last hidden states on, as a teacher in memory is compared with.
    """
    hidden, _ = backbone_states(policy.model.base_model, batch, False)
    states_KD = batch.wanted(hidden)
    head = policy.model.get_output_embeddings()
    assert isinstance(head, LogprobHead)
    weight_VD = head.weight.float()
    told = []
    for part_ND in states_KD.split(max(1, CHUNK_ELEMENTS // weight_VD.shape[0])):
        logits_NV = (part_ND.float() * head.scale) @ weight_VD.T
        if head.bias is not None:
            logits_NV += head.bias
        told.append([None if each is None else each.cpu() for each in tell(logits_NV / temperature, top_k)])
    columns = [_by_sequence(column, batch) for column in zip(*told, strict=True)]
    return [Told(*one) for one in zip(*columns, strict=True)]


def _by_sequence(parts: tuple[Tensor | None, ...], batch: MicroBatch) -> list[Tensor] | list[None]:
    """Chunks of the whole batch -> one tensor a sequence; None where there are none."""
    there = [part for part in parts if part is not None]
    return split(cat(there), batch) if there else [None] * len(batch.lengths_B)
