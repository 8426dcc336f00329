"""What a loss function of a learner sees and gives."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from torch import Tensor

from rlctl.learner.sequence import Sequence


@dataclass(frozen=True)
class Batch:
    """What a LossFn sees of one micro-batch: B sequences, T the longest response."""

    outputs_BT: Tensor
    """Log-probs or values, float32, with gradient; 0 where `mask_BT` is False."""
    entropy_BT: Tensor | None
    rows_BT: tuple[Tensor, ...]
    """All rows of the forward pass's output, `outputs_BT` first (a forward pass of one's own may give more)."""
    mask_BT: Tensor
    """The trained tokens."""
    lengths_B: Tensor
    fields: dict[str, Tensor]
    """float32 `[B, T]`."""
    scalars: dict[str, Tensor]
    """float32 `[B]`."""

    @property
    def logprobs_BT(self) -> Tensor:
        return self.outputs_BT

    @property
    def values_BT(self) -> Tensor:
        return self.outputs_BT


@dataclass(frozen=True)
class Totals:
    """Sums over all ranks and micro-batches of the optimizer step."""

    tokens: int
    """Trained tokens."""
    sequences: int
    """Sequences with at least one trained token."""


@dataclass(frozen=True)
class LossOutput:
    """The share of one micro-batch."""

    loss: Tensor
    """Scalar, already divided by the totals."""
    metrics: dict[str, tuple[Tensor | float, Tensor | float]] = field(default_factory=dict)
    """Name -> (sum, count); reported is the global sum over the global count."""


LossFn = Callable[[Batch, Totals], LossOutput]


@dataclass(frozen=True)
class Part:
    """One loss over its own sequences; the gradient of an optimizer step is the sum over its parts."""

    sequences: Seq[Sequence]
    """This rank's share."""
    loss: LossFn
    temperature: float = 1.0
    """Divides the logits."""
    entropy: bool = False
    """Whether the loss needs the entropy of each token's distribution."""
    group: int = 1
    """So many neighbours of `sequences` meet in one micro-batch."""
