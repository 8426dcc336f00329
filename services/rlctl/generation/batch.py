"""Continuous batching over a transformers model: sequences join and leave between any two tokens.

All rows share one KV cache, padded on the left to the longest row; a mask hides the padding and positions are given
by hand, so that where a row's padding ends does not matter. Shapes: B rows, L columns of the cache.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache

from rlctl.generation.sampler import Row, sample
from rlctl.generation.sequence import GrowingSequence

#: Tokens of one pass over prompts, padding included; a longer prompt goes alone.
_PREFILL_TOKENS = 4096


class Batch:
    """Sequences in work and waiting."""

    def __init__(self, model: Any, max_rows: int) -> None:
        self._model = model
        self._max_rows = max_rows
        self._waiting: deque[GrowingSequence] = deque()
        self._rows: list[GrowingSequence] = []
        self._cache: DynamicCache | None = None
        self._mask_BL = torch.zeros(0, 0, dtype=torch.long)

    def __len__(self) -> int:
        return len(self._rows) + len(self._waiting)

    def add(self, sequences: Sequence[GrowingSequence]) -> None:
        """Sequences that begin as soon as there is room."""
        self._waiting.extend(sequences)

    def forget(self) -> None:
        """Drops the cache: what is in work goes on from its tokens, computed anew."""
        self._waiting.extendleft(reversed(self._rows))
        self._rows, self._cache = [], None

    def step(self, version: int) -> list[GrowingSequence]:
        """Gives every row, or the rows that join now, their next token; returns those that got one."""
        self._drop_finished()
        joining = self._next_to_join()
        if joining:
            self._prefill(joining, version)
            return joining
        if not self._rows:
            return []
        tokens_B1 = torch.tensor([[row.response_ids[-1]] for row in self._rows])
        mask_BL = torch.cat([self._mask_BL, torch.ones(len(self._rows), 1, dtype=torch.long)], 1)
        output = self._model(
            input_ids=tokens_B1,
            attention_mask=mask_BL,
            position_ids=mask_BL.sum(1, keepdim=True) - 1,
            past_key_values=self._cache,
            use_cache=True,
        )
        self._mask_BL = mask_BL
        self._draw(output.logits[:, -1], self._rows, version)
        return list(self._rows)

    def _next_to_join(self) -> list[GrowingSequence]:
        """Waiting sequences that fit, in order."""
        while self._waiting and self._waiting[0].finish:
            self._waiting.popleft()
        joining: list[GrowingSequence] = []
        longest = 0
        while self._waiting and len(self._rows) + len(joining) < self._max_rows:
            head = self._waiting[0]
            longest = max(longest, len(head.prompt_ids) + len(head.response_ids))
            if joining and longest * (len(joining) + 1) > _PREFILL_TOKENS:
                break
            self._waiting.popleft()
            if not head.finish:
                joining.append(head)
        return joining

    def _prefill(self, joining: list[GrowingSequence], version: int) -> None:
        """Computes the tokens of sequences that join, each different prompt once, and their next token."""
        prompts: dict[tuple[int, ...], int] = {}
        places = [prompts.setdefault((*one.prompt_ids, *one.response_ids), len(prompts)) for one in joining]
        length = max(len(prompt) for prompt in prompts)
        tokens_BL = torch.zeros(len(prompts), length, dtype=torch.long)
        mask_BL = torch.zeros(len(prompts), length, dtype=torch.long)
        for prompt, place in prompts.items():
            tokens_BL[place, length - len(prompt) :] = torch.tensor(prompt)
            mask_BL[place, length - len(prompt) :] = 1
        cache = DynamicCache()
        output = self._model(
            input_ids=tokens_BL,
            attention_mask=mask_BL,
            position_ids=(mask_BL.cumsum(1) - 1).clamp(min=0),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        chosen_B = torch.tensor(places)
        cache.batch_select_indices(chosen_B)
        self._merge(cache, mask_BL[chosen_B])
        self._rows += joining
        self._draw(output.logits[:, -1][chosen_B], joining, version)

    def _draw(self, logits_BV: torch.Tensor, rows: list[GrowingSequence], version: int) -> None:
        known = [Row(row.sampling, row.prompt_ids, row.response_ids, row.generator) for row in rows]
        tokens_B, logprobs_B = sample(logits_BV, known)
        for row, token, logprob in zip(rows, tokens_B.tolist(), logprobs_B.tolist(), strict=True):
            row.append(token, logprob, version)

    def _merge(self, cache: DynamicCache, mask_BL: torch.Tensor) -> None:
        """Puts the rows of a cache below those there are."""
        if self._cache is None:
            self._cache, self._mask_BL = cache, mask_BL
            return
        length = max(self._mask_BL.shape[1], mask_BL.shape[1])
        for mine, other in zip(self._cache.layers, cache.layers, strict=True):
            mine.keys = torch.cat([_widen(mine.keys, length), _widen(other.keys, length)])
            mine.values = torch.cat([_widen(mine.values, length), _widen(other.values, length)])
        self._mask_BL = torch.cat([_widen(self._mask_BL, length, 1), _widen(mask_BL, length, 1)])

    def _drop_finished(self) -> None:
        """Removes rows that ended, and columns that no row uses any more."""
        stay = [index for index, row in enumerate(self._rows) if not row.finish]
        if len(stay) == len(self._rows):
            return
        self._rows = [self._rows[index] for index in stay]
        if not stay:
            self._cache = None
            return
        assert self._cache is not None
        stay_B = torch.tensor(stay)
        self._mask_BL = self._mask_BL[stay_B]
        first = int(self._mask_BL.argmax(1).min())
        self._mask_BL = self._mask_BL[:, first:]
        for layer in self._cache.layers:
            layer.keys = layer.keys[stay_B, :, first:]
            layer.values = layer.values[stay_B, :, first:]


def _widen(tensor: torch.Tensor, length: int, dim: int = 2) -> torch.Tensor:
    """Pads with zeros at the beginning of `dim`."""
    missing = length - tensor.shape[dim]
    if not missing:
        return tensor
    shape = list(tensor.shape)
    shape[dim] = missing
    return torch.cat([tensor.new_zeros(shape), tensor], dim)
