"""The load-balancing loss of mixtures of experts (Fedus et al., 2021, equations 4 to 6).

Legend: E experts, N real tokens of a forward pass (padding left out).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from rlctl.core.errors import ConfigError


def experts_per_token(config: PretrainedConfig) -> int:
    """Raises ConfigError for a model without experts."""
    for name in ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k"):
        if getattr(config, name, None):
            return int(getattr(config, name))
    raise ConfigError(
        f"aux_loss_coef: {config.model_type} is no mixture of experts; set aux_loss_coef to 0", reason="NO_EXPERTS"
    )


def balance_loss(
    router_logits: Sequence[Tensor],
    real_N: Tensor,
    top_k: int,
    summed: Callable[[Tensor], Tensor] = lambda sums: sums,
) -> Tensor:
    """`E * sum_e f_e P_e`: f the share of tokens sent to an expert, P its mean probability, over all layers' tokens.

    It equals transformers' `aux_loss`: `top_k` when balanced. `summed` adds the sums of other ranks that hold
    tokens of the same sequences. 0 where no token is real.
    """
    experts = router_logits[0].shape[-1]
    sums = torch.zeros(2 * experts + 1, dtype=torch.float32, device=router_logits[0].device)
    for logits in router_logits:
        probs = logits.view(-1, experts).float().softmax(-1)[real_N]
        chosen = torch.zeros_like(probs).scatter_(1, probs.detach().topk(top_k, -1).indices, 1.0)
        rows = probs.new_full((1,), float(len(probs)))
        sums = sums + torch.cat((chosen.sum(0), probs.sum(0), rows))
    sums = summed(sums)
    sent, probability, rows = sums[:experts], sums[experts:-1], sums[-1].detach().clamp(min=1.0)
    return experts * (sent.detach() / rows * (probability / rows)).sum()


def routers_of(output: Any) -> tuple[Tensor, ...]:
    """The router logits that a backbone was asked for. Raises ConfigError when it gives none."""
    found = tuple(one for one in getattr(output, "router_logits", None) or () if one is not None)
    if not found:
        raise ConfigError(
            "aux_loss_coef: this model gives no router logits; set aux_loss_coef to 0", reason="NO_EXPERTS"
        )
    return found


def expert_blocks(model: nn.Module) -> list[type[nn.Module]]:
    """Classes of blocks that hold their experts as a list of modules, of which a rank may use others than its peers."""
    blocks = {type(module) for module in model.modules() if isinstance(getattr(module, "experts", None), nn.ModuleList)}
    return sorted(blocks, key=lambda cls: cls.__name__)
