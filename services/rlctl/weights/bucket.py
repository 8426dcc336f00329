"""Buckets: whole tensors laid one after the other, each on a 16-byte boundary, with one digest over all bytes.

    | tensor 0 | 0..15 zero bytes | tensor 1 | ... |      zeros between tensors count in the digest

A tensor is never split, so that a bucket can be loaded by itself; one that is larger than the bucket size travels
alone in a bucket of its own size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import xxhash

from rlctl.core.errors import DataLossError, InvalidArgumentError

#: Bytes; what vector loads and torch's views want.
ALIGNMENT = 16

#: Types that weights travel in, by their name in the messages.
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class Entry:
    """One parameter in a bucket."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")


@dataclass(frozen=True, slots=True)
class Announcement:
    """What the other side must know of a bucket before its bytes come."""

    index: int
    entries: tuple[Entry, ...]
    num_bytes: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Bucket:
    """A packed bucket; `data` is uint8 of `num_bytes` and is overwritten when the next but one is packed."""

    announcement: Announcement
    data: torch.Tensor


def aligned(num_bytes: int) -> int:
    """The next multiple of 16."""
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


def offsets(entries: Sequence[Entry]) -> tuple[list[int], int]:
    """Where each entry begins, and where the last one ends, in bytes."""
    begins, end = [], 0
    for entry in entries:
        begin = aligned(end)
        begins.append(begin)
        end = begin + entry.num_bytes
    return begins, end


def digest(data: torch.Tensor) -> bytes:
    """xxh3-128 of a uint8 tensor's bytes (16 bytes); a tensor on a GPU is copied to the CPU for it."""
    return xxhash.xxh3_128_digest(data.cpu().numpy().data)


def entry_of(name: str, dtype: str, shape: Sequence[int]) -> Entry:
    """An entry from a message. Raises InvalidArgumentError."""
    if dtype not in DTYPES:
        raise InvalidArgumentError(
            f"weight {name!r} has dtype {dtype!r}; allowed are {', '.join(DTYPES)}", field="entries.dtype"
        )
    if any(size < 0 for size in shape):
        raise InvalidArgumentError(f"weight {name!r} has the shape {list(shape)}", field="entries.shape")
    return Entry(name, DTYPES[dtype], tuple(shape))


def check(announcement: Announcement) -> None:
    """Checks that the entries fill the bytes announced. Raises InvalidArgumentError."""
    _, end = offsets(announcement.entries)
    if end != announcement.num_bytes:
        raise InvalidArgumentError(
            f"bucket {announcement.index} is said to have {announcement.num_bytes:,} bytes; its entries fill {end:,}",
            field="bucket.num_bytes",
        )


def verify(announcement: Announcement, data: torch.Tensor) -> None:
    """Checks received bytes against the digest. Raises DataLossError."""
    if digest(data) != announcement.digest:
        raise DataLossError(
            f"bucket {announcement.index} came with other bytes than its digest says; it was not loaded. "
            "The next sync sends all weights again.",
            reason="DIGEST_MISMATCH",
        )


def unpack(announcement: Announcement, data: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    """Views of `data`, one an entry."""
    begins, _ = offsets(announcement.entries)
    return [
        (entry.name, data[begin : begin + entry.num_bytes].view(entry.dtype).view(entry.shape))
        for entry, begin in zip(announcement.entries, begins, strict=True)
    ]


class Packer:
    """Packs a stream of weights into buckets of at most `capacity` bytes, with two buffers in turn.

    Each tensor is copied before the next one is asked for: a gathered parameter lives no longer.
    """

    def __init__(self, capacity: int, device: torch.device) -> None:
        self._capacity = aligned(capacity)
        self._buffers = [torch.empty(0, dtype=torch.uint8, device=device) for _ in range(2)]

    def pack(self, weights: Iterator[tuple[str, torch.Tensor]]) -> Iterator[Bucket]:
        """Buckets in order. Raises InvalidArgumentError for a dtype that does not travel."""
        index, end = 0, 0
        entries: list[Entry] = []
        for name, tensor in weights:
            entry = entry_of(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
            if entries and aligned(end) + entry.num_bytes > self._capacity:
                yield self._close(index, entries, end)
                index, end, entries = index + 1, 0, []
            begin = aligned(end)
            data = self._room(index % 2, begin + entry.num_bytes)
            data[end:begin].zero_()
            end = begin + entry.num_bytes
            data[begin:end].view(entry.dtype).view(entry.shape).copy_(tensor.detach())
            entries.append(entry)
        if entries:
            yield self._close(index, entries, end)

    def _room(self, slot: int, num_bytes: int) -> torch.Tensor:
        """The buffer of a slot; made on first use, and anew for a tensor larger than a bucket, which stands alone."""
        if self._buffers[slot].numel() < num_bytes:
            size = max(num_bytes, self._capacity)
            self._buffers[slot] = torch.empty(size, dtype=torch.uint8, device=self._buffers[slot].device)
        return self._buffers[slot]

    def _close(self, index: int, entries: list[Entry], end: int) -> Bucket:
        data = self._buffers[index % 2][:end]
        return Bucket(Announcement(index, tuple(entries), end, digest(data)), data)
