"""A data set in memory: what passed the filters, and what they took away."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Dataset(Sequence[T], Generic[T]):
    """Items in the order of the data. `counts`: `rows` read, `kept`, and what each filter took, by name."""

    items: list[T]
    counts: dict[str, int]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)
