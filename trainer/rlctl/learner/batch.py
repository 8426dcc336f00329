"""Micro-batches: which sequences share a forward pass, and the tensors of one.

Shapes: B sequences of a micro-batch, T its longest response, R rows and L columns of the forward pass (packed: one
row of all tokens), K response tokens whose output is wanted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlctl.learner.prompts import owners
from rlctl.learner.sequence import Sequence
from rlctl.learner.spread import Spread
from rlctl.models.attention import Bucket, Layout
from rlctl.models.rows import Repeats, take

#: A bucket of a packed row ends where a sequence is shorter than this share of the bucket's longest, ...
_LIKE = 0.75
#: ... unless the bucket's rows are short anyway.
_SHORT = 64
#: Attention has a shared prompt in the row of each of its sequences: at most so many times the budget in all rows.
_ROWS = 4


@dataclass(frozen=True)
class MicroBatch:
    """Everything one forward pass and its loss need."""

    input_ids: Tensor
    """`[R, L]`."""
    position_ids: Tensor
    """`[R, L]`, from 0 in each sequence."""
    layout: Layout
    states_K: Tensor
    """Where on the flat `R * L` grid the state before each wanted token lies."""
    repeats_K: Repeats | None
    """Where `states_K` repeats itself: a shared prompt's last token is before the first of each of its responses."""
    targets_K: Tensor
    """The wanted tokens."""
    slots_K: Tensor
    """Where on the flat `B * T` grid a wanted token belongs."""
    mask_BT: Tensor
    """The trained tokens, bool."""
    lengths_B: Tensor
    """Response lengths."""
    fields: dict[str, Tensor]
    """Per-token numbers of the sequences, `[B, T]`, 0 beyond a response."""
    scalars: dict[str, Tensor]
    """Numbers of the sequences, `[B]`."""
    cu_lengths: Tensor | None
    """Packed: cumulative lengths for flash attention, int32 `[B + 1]`."""
    max_length: int
    """Longest sequence, tokens."""
    real_RL: Tensor
    """Where on the grid a token is, bool `[R, L]`; elsewhere is padding."""
    spread: Spread | None = None
    """Sequence parallelism: this is one rank's stretch of the columns, and whose the other outputs are."""

    @property
    def shape(self) -> tuple[int, int]:
        """`(B, T)`."""
        return self.mask_BT.shape[0], self.mask_BT.shape[1]

    def wanted(self, grid_RL: Tensor) -> Tensor:
        """Rows `[K, ...]` of a grid `[R, L, ...]` at the positions before the wanted tokens; differentiable."""
        return take(grid_RL.flatten(0, 1), self.states_K, self.repeats_K)

    def attention_inputs(self, flash: bool) -> dict[str, Any]:
        """The keyword arguments by which the attention learns where sequences begin and end."""
        if not flash or self.spread is not None:
            return {"layout": self.layout}
        if self.cu_lengths is None:
            return {}
        ends, longest = self.cu_lengths, self.max_length
        return {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": longest, "max_length_k": longest}


def plan(sequences: Seq[Sequence], budget: int, packing: bool, group: int = 1, shared: bool = False) -> list[list[int]]:
    """Splits sequences (by index) into micro-batches of at most `budget` tokens, longest first.

    A packed micro-batch costs the sum of its lengths, a padded one its count times its longest. Every `group`
    neighbours (the two sides of a pair) stay in one micro-batch; such a group above the budget is one of its own.
    `shared`: sequences of one prompt are neighbours, and a micro-batch pays for the prompt once, but is at most `_ROWS`
    times the budget with the prompt in each of them.
    """
    lengths = [len(sequence) for sequence in sequences]
    prompts = owners(sequences) if shared else list(range(len(lengths)))
    groups = [range(first, first + group) for first in range(0, len(lengths), group)]
    wholes = [sum(lengths[index] for index in each) for each in groups]

    def cost(number: int, paid: set[int]) -> int:
        if not packing:
            return group * max(lengths[index] for index in groups[number])
        prompt = {prompts[index]: sequences[index].prompt_ids.numel() for index in groups[number]}
        times = Counter(prompts[index] for index in groups[number])
        return wholes[number] - sum(prompt[owner] * (count - (owner not in paid)) for owner, count in times.items())

    costs = [cost(number, set()) for number in range(len(groups))]
    longest: dict[int, int] = {}
    for number, each in enumerate(groups):
        longest[prompts[each[0]]] = max(longest.get(prompts[each[0]], 0), costs[number])
    batches: list[list[int]] = []
    used, rows, paid = 0, 0, set[int]()
    for number in sorted(
        range(len(groups)), key=lambda n: (-longest[prompts[groups[n][0]]], prompts[groups[n][0]], -costs[n], n)
    ):
        if batches and packing:
            fits = used + cost(number, paid) <= budget and rows + wholes[number] <= _ROWS * budget
        else:
            fits = bool(batches) and costs[batches[-1][0]] * (len(batches[-1]) + 1) <= budget
        if not fits:
            batches.append([])
            used, rows, paid = 0, 0, set()
        batches[-1].append(number)
        used, rows = used + cost(number, paid), rows + wholes[number]
        paid.update(prompts[index] for index in groups[number])
    return [
        sorted((index for number in batch for index in groups[number]), key=lambda index: (-lengths[index], index))
        for batch in batches
    ]


def share_out(lengths: Seq[int], ranks: int) -> list[list[int]]:
    """Splits sequences (by index) over `ranks`, tokens as even as a longest-first greedy choice makes them."""
    shares: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        rank = loads.index(min(loads))
        shares[rank].append(index)
        loads[rank] += lengths[index]
    return shares


def collate(
    sequences: Seq[Sequence], *, packing: bool, trained_only: bool, device: torch.device, shared: bool = False
) -> MicroBatch:
    """The tensors of a micro-batch; outputs are wanted at all response tokens, or at the trained ones only.

    There is at least one sequence. `shared` (packed only): sequences of one prompt have its tokens in common.
    """
    prompts = torch.tensor([s.prompt_ids.numel() for s in sequences])
    lengths_B = torch.tensor([s.response_ids.numel() for s in sequences])
    totals = prompts + lengths_B
    ids_M = torch.cat([part for s in sequences for part in (s.prompt_ids, s.response_ids)])
    starts = totals.cumsum(0) - totals
    positions_M = torch.arange(ids_M.numel()) - starts.repeat_interleave(totals)
    longest, width = int(totals.max()), max(1, int(lengths_B.max()))
    count = len(sequences)

    rows_K = torch.arange(count).repeat_interleave(lengths_B)
    steps_K = torch.arange(rows_K.numel()) - (lengths_B.cumsum(0) - lengths_B).repeat_interleave(lengths_B)
    packed_K = (starts + prompts)[rows_K] + steps_K
    slots_K = rows_K * width + steps_K
    targets_K = ids_M[packed_K]
    own_M = tokens_M = None
    if packing:
        own_M, tokens_M = _tokens(sequences, prompts, totals, positions_M, shared)
        states_K = tokens_M[packed_K - 1]
    else:
        states_K = rows_K * longest + prompts[rows_K] + steps_K - 1

    mask_K = torch.cat([s.mask for s in sequences])
    mask_BT = torch.zeros(count * width, dtype=torch.bool)
    mask_BT[slots_K] = mask_K
    fields = {}
    for name in sequences[0].fields:
        grid = torch.zeros(count * width, dtype=torch.float32)
        grid[slots_K] = torch.cat([s.fields[name] for s in sequences])
        fields[name] = grid.view(count, width).to(device)
    scalars = {
        name: torch.tensor([s.scalars[name] for s in sequences], dtype=torch.float32, device=device)
        for name in sequences[0].scalars
    }
    if trained_only:
        states_K, targets_K, slots_K = states_K[mask_K], targets_K[mask_K], slots_K[mask_K]

    cu_lengths = None
    if tokens_M is not None and own_M is not None:
        input_ids, position_ids = ids_M[own_M].unsqueeze(0), positions_M[own_M].unsqueeze(0)
        layout = Layout(_buckets(totals.tolist(), positions_M, tokens_M, own_M, device))
        cu_lengths = torch.nn.functional.pad(totals.cumsum(0), (1, 0)).to(device, torch.int32)
    else:
        input_ids = torch.zeros(count * longest, dtype=torch.int64)
        input_ids[torch.arange(count).repeat_interleave(totals) * longest + positions_M] = ids_M
        input_ids = input_ids.view(count, longest)
        position_ids = torch.arange(longest).expand(count, longest)
        layout = Layout()
    real_RL = torch.ones_like(input_ids, dtype=torch.bool) if packing else position_ids < totals.unsqueeze(1)
    states_K = states_K.to(device)
    return MicroBatch(
        input_ids=input_ids.to(device),
        position_ids=position_ids.to(device),
        layout=layout,
        states_K=states_K,
        repeats_K=Repeats.of(states_K) if shared else None,
        targets_K=targets_K.to(device),
        slots_K=slots_K.to(device),
        mask_BT=mask_BT.view(count, width).to(device),
        lengths_B=lengths_B.to(device),
        fields=fields,
        scalars=scalars,
        cu_lengths=cu_lengths,
        max_length=longest,
        real_RL=real_RL.to(device),
    )


def _tokens(
    sequences: Seq[Sequence], prompts: Tensor, totals: Tensor, positions_M: Tensor, shared: bool
) -> tuple[Tensor, Tensor]:
    """Of all tokens of all sequences: whether each is in the packed row itself, and where there it is found.

    The prompt of a sequence whose prompt an earlier one has is found there.
    """
    first = torch.tensor(owners(sequences)) if shared else torch.arange(len(sequences))
    rows_M = torch.arange(len(sequences)).repeat_interleave(totals)
    own_M = (first[rows_M] == rows_M) | (positions_M >= prompts[rows_M])
    tokens_M = own_M.cumsum(0) - 1
    begins = tokens_M[totals.cumsum(0) - totals]
    return own_M, torch.where(own_M, tokens_M, begins[first[rows_M]] + positions_M)


def _buckets(
    totals: list[int], positions_M: Tensor, tokens_M: Tensor, own_M: Tensor, device: torch.device
) -> tuple[Bucket, ...]:
    """Neighbouring sequences of like length share a bucket (`plan` orders them by length)."""
    buckets = []
    first, start = 0, 0
    while first < len(totals):
        longest, last = totals[first], first
        while last < len(totals) and totals[last] <= longest and (longest <= _SHORT or totals[last] >= _LIKE * longest):
            last += 1
        if last == first:
            last += 1
        rows = torch.tensor(totals[first:last])
        end = start + int(rows.sum())
        slots = torch.arange(len(rows)).repeat_interleave(rows) * longest + positions_M[start:end]
        tokens, own = tokens_M[start:end].to(device), own_M[start:end]
        kept = None if bool(own.all()) else own.nonzero().squeeze(1).to(device)
        buckets.append(Bucket(tokens, slots.to(device), len(rows), longest, Repeats.of(tokens), kept))
        first, start = last, end
    return tuple(buckets)


def empty(device: torch.device, packing: bool) -> MicroBatch:
    """A micro-batch for a rank that has none left: one sequence of two tokens, of which none is trained."""
    token = torch.zeros(1, dtype=torch.int64)
    nothing = Sequence(token, token, torch.zeros(1, dtype=torch.bool))
    return collate([nothing], packing=packing, trained_only=False, device=device)
