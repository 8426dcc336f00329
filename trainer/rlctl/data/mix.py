"""Several data sets as one: put together, or mixed by probability; and training data kept apart from held-out data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rlctl.core.errors import ConfigError
from rlctl.data.config import SourceConfig, check_probabilities
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
    held_out: Iterable[T] | None = None,
    held_out_configs: Sequence[SourceConfig] = (),
) -> Mixture[T]:
    """Loads every data set; rows that the held-out data has too are taken away and counted.

    Raises ConfigError where the probabilities are not for all or do not sum to 1, where a data set is also the
    held-out one, or where nothing is left.
    """
    shares = probabilities(configs)
    check_apart(configs, held_out_configs)
    known = {identity(item) for item in held_out or ()}
    items: list[T] = []
    sizes: list[int] = []
    counts: list[dict[str, int]] = []
    for config in configs:
        data = load(config)
        kept = [item for item in data if identity(item) not in known] if known else list(data)
        counted = {**data.counts, "kept": len(kept)}
        if held_out is not None:
            counted["held_out"] = len(data) - len(kept)
        if not kept:
            raise nothing_left(config, counted, "rows")
        items += kept
        sizes.append(len(kept))
        counts.append(counted)
    return Mixture(items, sizes, shares, counts)


def probabilities(configs: Sequence[SourceConfig]) -> list[float] | None:
    """The shares of a mixture, or None where data sets are put together. Raises ConfigError."""
    try:
        check_probabilities([config.probability for config in configs])
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return [config.probability for config in configs if config.probability is not None] or None
