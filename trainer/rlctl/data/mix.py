"""Several data sets as one: put together, or mixed by probability; and training data kept apart from held-out data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rlctl.core.errors import ConfigError
from rlctl.data.config import SourceConfig
from rlctl.data.cursor import MixedCursor, PromptCursor
from rlctl.data.dataset import Dataset
from rlctl.data.filters import nothing_left
from rlctl.data.overlap import check_apart, identity

C = TypeVar("C", bound=SourceConfig)
T = TypeVar("T")


@dataclass(frozen=True)
class Mixture(Generic[T]):
    """Data sets, one behind the other in `items`."""

    items: list[T]
    sizes: list[int]
    """Items of each data set."""
    probabilities: list[float] | None
    """Share of each data set; None where all items come once an epoch."""
    counts: list[dict[str, int]]
    """What the filters of each data set took; `held_out` rows stand in the held-out data."""

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> T:
        return self.items[index]

    def cursor(self, shuffle: bool, seed: int) -> PromptCursor:
        """Where training stands in the items."""
        if self.probabilities is None:
            return PromptCursor(len(self.items), shuffle, seed)
        return MixedCursor(self.sizes, self.probabilities, shuffle, seed)


def mix(
    configs: Sequence[C],
    load: Callable[[C], Dataset[T]],
    held_out: Dataset[T] | None = None,
    held_out_config: SourceConfig | None = None,
) -> Mixture[T]:
    """Loads every data set; rows that the held-out data has too are taken away and counted.

    Raises ConfigError where the probabilities are not for all or do not sum to 1, where a data set is also the
    held-out one, or where nothing is left.
    """
    shares = probabilities(configs)
    if held_out_config is not None:
        check_apart(configs, held_out_config)
    known = {identity(item) for item in held_out} if held_out is not None else set()
    items: list[T] = []
    sizes: list[int] = []
    counts: list[dict[str, int]] = []
    for config in configs:
        data = load(config)
        kept = [item for item in data if identity(item) not in known] if known else list(data)
        counted = {**data.counts, "held_out": len(data) - len(kept), "kept": len(kept)}
        if not kept:
            raise nothing_left(config, counted, "rows")
        items += kept
        sizes.append(len(kept))
        counts.append(counted)
    return Mixture(items, sizes, shares, counts)


def probabilities(configs: Sequence[SourceConfig]) -> list[float] | None:
    """The shares of a mixture, or None where data sets are put together. Raises ConfigError."""
    given = [config.probability for config in configs]
    shares = [share for share in given if share is not None]
    if not shares:
        return None
    if len(shares) < len(given):
        raise ConfigError(
            f"probability is set for {len(shares)} of {len(given)} data sets: set it for all, or for none"
        )
    if abs(sum(shares) - 1) > 1e-6:
        raise ConfigError(f"the probabilities of the data sets sum to {sum(shares):g}: let them sum to 1")
    return shares
