"""The forward pass to one number a response token: log-probs of a policy, values of a value model."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlctl.algorithms.logprobs import token_logprobs
from rlctl.core.errors import ConfigError
from rlctl.learner.batch import MicroBatch
from rlctl.models.moe import balance_loss, experts_per_token, routers_of
from rlctl.models.rows import place
from rlctl.models.value_head import ValueModel
from rlctl.models.widen import needs_widening


class LogprobHead(nn.Linear):
    """The output embedding, which gives log-probs of targets instead of logits; same weight, same name.

    It stays a module of its own so that ZeRO-3 gathers the weight where it is used. It gives one tensor, for
    ZeRO-3 hooks every output whose gradient is asked for, and all ranks must meet the same hooks.
    """

    @classmethod
    def around(cls, head: nn.Linear, scale: float) -> LogprobHead:
        """Takes over the parameters of `head`; `scale` multiplies its logits (some models scale them)."""
        with torch.device("meta"):
            new = cls(head.in_features, head.out_features, bias=head.bias is not None)
        new.weight = head.weight
        new.bias = head.bias
        new.scale = scale
        return new

    scale: float = 1.0
    _wide: Tensor | None = None

    def keep_wide(self) -> None:
        """For a weight that never changes: on a CPU it is kept in float32 too, which each pass would make anew."""
        if self.weight.device.type == "cpu":
            self._wide = self.weight.detach().float()

    def forward(
        self,
        hidden_KD: Tensor,
        targets_K: Tensor | None = None,
        temperature: float = 1.0,
        chunk: int | None = None,
        with_entropy: bool = False,
    ) -> Tensor:
        """`[1, K]` log-probs, with entropy `[2, K]`; without targets the logits."""
        if targets_K is None:
            return super().forward(hidden_KD)
        narrow = None if needs_widening(self.weight) else self.weight.dtype
        if needs_widening(hidden_KD):
            hidden_KD = hidden_KD.float()
        logprobs_K, entropy_K = token_logprobs(
            hidden_KD,
            self.weight,
            targets_K,
            temperature / self.scale,
            chunk,
            self.bias,
            with_entropy,
            grad_dtype=narrow,
            wide_weight_VD=self._wide,
        )
        return logprobs_K.unsqueeze(0) if entropy_K is None else torch.stack((logprobs_K, entropy_K))


class PolicyForward(nn.Module):
    """A causal language model that gives log-probs at the wanted tokens only."""

    #: What the output embedding becomes.
    head_type: type[LogprobHead] = LogprobHead

    def __init__(self, model: PreTrainedModel, chunk: int) -> None:
        super().__init__()
        head = model.get_output_embeddings()
        if not isinstance(head, nn.Linear):
            raise ConfigError(f"{type(model).__name__} has no linear output embedding", reason="UNSUPPORTED_MODEL")
        if not isinstance(head, self.head_type):
            head = self.head_type.around(head, _logit_scale(model))
            model.set_output_embeddings(head)
        self.model = model
        self.chunk = chunk
        self.balance = False
        """Whether to give the load-balancing loss of a mixture of experts too."""

    def forward(
        self, batch: MicroBatch, temperature: float = 1.0, entropy: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """`[1, K]` log-probs of the wanted tokens, with `entropy` `[2, K]`, float32; with `balance` its scalar too."""
        hidden, balance = backbone_states(self.model.base_model, batch, self.balance)
        states_KD = batch.wanted(hidden)
        head = self.model.get_output_embeddings()
        outputs = everywhere(head(states_KD, batch.targets_K, temperature, self.chunk, entropy), batch)
        return outputs if balance is None else (outputs, balance)


class ValueForward(nn.Module):
    """A value model that gives the value of the state before each wanted token."""

    def __init__(self, model: ValueModel) -> None:
        super().__init__()
        self.model = model
        self.balance = False

    def forward(self, batch: MicroBatch) -> Tensor | tuple[Tensor, Tensor]:
        """`[1, K]` values, float32; with `balance` its scalar too."""
        hidden, balance = backbone_states(self.model.backbone, batch, self.balance)
        values = self.model.score(hidden).squeeze(-1).float()
        outputs = everywhere(batch.wanted(values).unsqueeze(0), batch)
        return outputs if balance is None else (outputs, balance)


def backbone_states(backbone: PreTrainedModel, batch: MicroBatch, balance: bool) -> tuple[Tensor, Tensor | None]:
    """Last hidden states `[R, L, D]` (this rank's columns), and with `balance` the load-balancing loss."""
    flash = backbone.config._attn_implementation == "flash_attention_2"
    asked = {"output_router_logits": True} if balance else {}
    output = backbone(
        input_ids=batch.input_ids,
        position_ids=batch.position_ids,
        use_cache=False,
        **batch.attention_inputs(flash),
        **asked,
    )
    if not balance:
        return output.last_hidden_state, None
    top_k = experts_per_token(backbone.config)
    summed = {"summed": batch.spread.group.summed} if batch.spread is not None else {}
    return output.last_hidden_state, balance_loss(routers_of(output), batch.real_RL.flatten(), top_k, **summed)


def everywhere(outputs: Tensor, batch: MicroBatch) -> Tensor:
    """`[C, K]` of all wanted tokens: with sequence parallelism a rank has computed only those of its columns."""
    return outputs if batch.spread is None else batch.spread.whole(outputs)


def on_grid(values_K: Tensor, batch: MicroBatch) -> Tensor:
    """`[B, T]`, 0 where nothing was wanted; differentiable."""
    rows, width = batch.shape
    return place(values_K, batch.slots_K, rows * width).view(rows, width)


def split(values_K: Tensor, batch: MicroBatch) -> list[Tensor]:
    """One tensor a sequence, when all response tokens were wanted."""
    return list(values_K.split(batch.lengths_B.tolist()))


def _logit_scale(model: PreTrainedModel) -> float:
    """By what the model multiplies its logits (Cohere `logit_scale`; Granite divides by `logits_scaling`)."""
    config = model.config
    return float(getattr(config, "logit_scale", None) or 1.0) / float(getattr(config, "logits_scaling", None) or 1.0)
