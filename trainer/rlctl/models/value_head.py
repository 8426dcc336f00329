"""A model that gives one number a token: the critic's value, or a reward model's score."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel


class ValueModel(nn.Module):
    """A decoder `backbone` with a linear head `score` of one output.

    The names are those of `AutoModelForSequenceClassification`, so that what is saved loads there.
    """

    def __init__(self, backbone: PreTrainedModel) -> None:
        super().__init__()
        self.backbone = backbone
        self.config = backbone.config
        self.score = nn.Linear(backbone.config.hidden_size, 1, bias=False)
        self.score.to(dtype=backbone.dtype, device=backbone.device)

    def zero_head(self) -> None:
        """A critic that starts from the policy: every value is 0 until it learns."""
        nn.init.zeros_(self.score.weight)

    def random_head(self, seed: int) -> None:
        """N(0, 1/(hidden+1)), as reward models are started."""
        generator = torch.Generator().manual_seed(seed)
        std = (self.config.hidden_size + 1) ** -0.5
        with torch.no_grad():
            draw = torch.normal(0.0, std, self.score.weight.shape, generator=generator)
            self.score.weight.copy_(draw.to(self.score.weight))

    def forward(self, input_ids: Tensor, **inputs: Any) -> Tensor:
        """`[R, L]` ids -> `[R, L]` values in float32 (`inputs` go to the backbone)."""
        hidden = self.backbone(input_ids=input_ids, use_cache=False, **inputs).last_hidden_state
        return self.score(hidden).squeeze(-1).float()
