"""Sampling from logits, row by row with settings of their own, in the order vLLM has: penalties, temperature, min_p,
top_k, top_p. Shapes: B rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from rlctl.generation.engine import Sampling


class Row(NamedTuple):
    """What sampling needs to know of a row."""

    sampling: Sampling
    prompt_ids: Sequence[int]
    response_ids: Sequence[int]
    generator: torch.Generator
    """Of this row, or shared where the request has no seed."""


def sample(logits_BV: torch.Tensor, rows: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor]:
    """Next tokens [B] (int64) and their log-probs [B] (float32) under the distribution they were drawn from.

    A greedy row's log-prob is that of temperature 1.
    """
    logits_BV = logits_BV.float()
    for index, row in enumerate(rows):
        logits_BV[index] = penalize(logits_BV[index], row)
    temperatures_B = torch.tensor([row.sampling.temperature for row in rows], device=logits_BV.device)
    greedy_B = temperatures_B == 0
    logits_BV = logits_BV / torch.where(greedy_B, torch.ones_like(temperatures_B), temperatures_B)[:, None]
    for index, row in enumerate(rows):
        if row.sampling.temperature:
            logits_BV[index] = cut(logits_BV[index], row.sampling)
    logprobs_BV = logits_BV.log_softmax(-1)
    # argmax(p / e) with e exponentially distributed draws from p; each row uses its own stream of random numbers.
    noise_BV = torch.ones_like(logprobs_BV)
    for index, row in enumerate(rows):
        if row.sampling.temperature:
            noise_BV[index].exponential_(generator=row.generator)
    tokens_B = (logprobs_BV - noise_BV.log()).argmax(-1)
    return tokens_B, logprobs_BV.gather(-1, tokens_B[:, None])[:, 0]


def penalize(logits_V: torch.Tensor, row: Row) -> torch.Tensor:
    """Repetition counts prompt and response, presence and frequency the response alone."""
    sampling = row.sampling
    if sampling.repetition_penalty != 1:
        seen = torch.tensor(sorted({*row.prompt_ids, *row.response_ids}), device=logits_V.device)
        values = logits_V[seen]
        logits_V = logits_V.index_copy(
            0, seen, torch.where(values > 0, values / sampling.repetition_penalty, values * sampling.repetition_penalty)
        )
    if (sampling.presence_penalty or sampling.frequency_penalty) and row.response_ids:
        ids = torch.tensor(row.response_ids, device=logits_V.device)
        counts_V = torch.zeros_like(logits_V).index_add_(0, ids, torch.ones(len(ids), device=logits_V.device))
        logits_V = logits_V - sampling.frequency_penalty * counts_V - sampling.presence_penalty * (counts_V > 0)
    return logits_V


def cut(logits_V: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Removes the tokens that min_p, top_k and top_p leave out; the most likely one always stays."""
    if sampling.min_p:
        probs_V = logits_V.softmax(-1)
        logits_V = logits_V.masked_fill(probs_V < sampling.min_p * probs_V.max(), -torch.inf)
    if sampling.top_k:
        least = logits_V.topk(min(sampling.top_k, len(logits_V))).values[-1]
        logits_V = logits_V.masked_fill(logits_V < least, -torch.inf)
    if sampling.top_p < 1:
        sorted_V, order_V = logits_V.sort(descending=True)
        probs_V = sorted_V.softmax(-1)
        # A token stays as long as those before it do not reach top_p.
        beyond_V = probs_V.cumsum(-1) - probs_V >= sampling.top_p
        logits_V = logits_V.masked_fill(torch.empty_like(beyond_V).scatter_(0, order_V, beyond_V), -torch.inf)
    return logits_V
