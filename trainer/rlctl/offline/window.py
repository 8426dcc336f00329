"""Metrics of several steps as one row."""

from __future__ import annotations


class Window:
    """Sums by name since the last `clear`."""

    def __init__(self) -> None:
        self._sums: dict[str, list[float]] = {}

    def add(self, metrics: dict[str, float]) -> None:
        for name, value in metrics.items():
            kept = self._sums.setdefault(name, [0.0, 0.0])
            kept[0] += value
            kept[1] += 1.0

    def means(self) -> dict[str, float]:
        """Means over the steps that had the metric."""
        return {name: total / count for name, (total, count) in self._sums.items()}

    def clear(self) -> None:
        self._sums.clear()

    def state(self) -> dict[str, list[float]]:
        """What `restore` needs; plain JSON."""
        return {name: list(kept) for name, kept in self._sums.items()}

    def restore(self, state: dict[str, list[float]]) -> None:
        self._sums = {name: list(kept) for name, kept in state.items()}
