"""One DeepSpeed engine around one model: forward, step, checkpoint, export.

    sequences -> micro-batches by token budget -> forward -> loss / global totals -> backward -> clip -> AdamW

The loss of a step does not depend on how it is split. A LossFn divides by the *global* totals, so that the sum over
micro-batches and ranks is the loss; DeepSpeed averages gradients over ranks, which a factor of the rank count undoes.
A rank with fewer micro-batches than another runs empty ones of which the loss is exactly 0.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from rlctl.core.errors import InvalidArgumentError
from rlctl.learner import distributed, state
from rlctl.learner.batch import MicroBatch, collate, empty, plan
from rlctl.learner.config import LearnerConfig
from rlctl.learner.engine import build_engine, clips_itself
from rlctl.learner.export import Weight, export, list_weights
from rlctl.learner.forward import PolicyForward, ValueForward, on_grid, split
from rlctl.learner.prepare import prepare
from rlctl.learner.schedule import learning_rate
from rlctl.learner.sequence import Sequence
from rlctl.models.save import save_model
from rlctl.models.value_head import ValueModel


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


class Learner:
    """A policy (`value=False`) or a value model, trained by DeepSpeed on this rank's share of each batch."""

    def __init__(
        self,
        model: PreTrainedModel | ValueModel,
        config: LearnerConfig,
        *,
        total_steps: int,
        value: bool = False,
        seed: int = 0,
        forward: Callable[[PreTrainedModel, int], PolicyForward] = PolicyForward,
    ) -> None:
        """`total_steps` is the length of the learning-rate schedule; `seed` that of dropout.

        `forward` wraps a policy (model, tokens of a chunk of logits) where other outputs than log-probs are wanted.
        """
        torch.set_num_threads(config.threads)
        self.device = distributed.initialise()
        self.config = config
        self.total_steps = total_steps
        self.steps = 0
        torch.manual_seed(seed + distributed.rank())
        assert isinstance(model, ValueModel) == value
        model = prepare(model, config)
        self._model = model
        module = ValueForward(model) if isinstance(model, ValueModel) else forward(model, config.logits_chunk)
        self._weights: list[Weight] = list_weights(model)
        self._engine = build_engine(module, config, distributed.world_size(), self.device)
        self._partitioned = config.zero_stage == 3

    @property
    def model_config(self) -> PretrainedConfig:
        """The Hugging Face configuration of the model."""
        return self._model.config

    # -- without gradient ---------------------------------------------------------------------------------------

    def logprobs(self, sequences: Seq[Sequence], temperature: float = 1.0, entropy: bool = False) -> list[Tensor]:
        """Log-probs of all response tokens (or, with `entropy`, the entropies), float32 `[T]` each, on the CPU.

        Of this rank's sequences, in their order. Under ZeRO-3 all ranks call it together.
        """
        return self._infer(sequences, temperature, entropy)

    def values(self, sequences: Seq[Sequence]) -> list[Tensor]:
        """The value of the state before each response token, float32 `[T]` each, on the CPU."""
        return self._infer(sequences)

    @torch.no_grad()
    def _infer(self, sequences: Seq[Sequence], temperature: float = 1.0, entropy: bool = False) -> list[Tensor]:
        self._engine.eval()
        results: list[Tensor] = [torch.empty(0)] * len(sequences)
        batches = plan([len(s) for s in sequences], self.config.micro_batch_tokens, self.config.packing)
        for indices in batches:
            batch = self._collate([sequences[i] for i in indices], trained_only=False)
            outputs = self._forward(self._engine.module, batch, temperature, entropy)
            for index, part in zip(indices, split(outputs[1 if entropy else 0].cpu(), batch), strict=True):
                results[index] = part
        for _ in range(self._missing(len(batches))):
            self._forward(self._engine.module, empty(self.device), temperature, entropy)
        return results

    @torch.no_grad()
    def measure(self, sequences: Seq[Sequence], loss: LossFn, *, group: int = 1) -> dict[str, float]:
        """The metrics of `loss`, and `loss`, over the sequences of all ranks, which call it together.

        In eval mode, without a gradient; `group` as of `step`.
        """
        self._engine.eval()
        trained, batches, totals, _ = self._split(sequences, group)
        sums = state.MetricSums()
        for indices in batches:
            batch = self._collate([trained[i] for i in indices], trained_only=True)
            output = self._loss(self._engine.module, batch, totals, loss, 1.0, False)
            sums.add(output.metrics | {"loss": (output.loss, 0.0)})
        for _ in range(self._missing(len(batches))):
            self._forward(self._engine.module, empty(self.device), 1.0, False)
        return sums.reduced()

    def _missing(self, count: int) -> int:
        """Forward passes that other ranks still run, which ZeRO-3 must run with them."""
        if not self._partitioned:
            return 0
        return int(max(n for (n,) in distributed.all_gather_floats([count]))) - count

    # -- with gradient ------------------------------------------------------------------------------------------

    def step(
        self,
        sequences: Seq[Sequence],
        loss: LossFn,
        *,
        temperature: float = 1.0,
        entropy: bool = False,
        group: int = 1,
    ) -> dict[str, float]:
        """One optimizer step over the shares of all ranks (all call it together; a share may be empty).

        Every `group` neighbours of `sequences` meet in one micro-batch (in any order there, and left out together
        when one has no trained token). Returns the metrics of `loss`, `loss`, `grad_norm` (before clipping) and
        `learning_rate`, the same on every rank. Raises InvalidArgumentError when no rank has a trained token.
        """
        metrics = self.accumulate(sequences, loss, temperature=temperature, entropy=entropy, group=group)
        return metrics | self.apply()

    def accumulate(
        self,
        sequences: Seq[Sequence],
        loss: LossFn,
        *,
        temperature: float = 1.0,
        entropy: bool = False,
        group: int = 1,
    ) -> dict[str, float]:
        """The backward passes of a step, up to the reduced gradient. `apply` must follow."""
        trained, batches, totals, passes = self._split(sequences, group)
        self._engine.train()
        sums = state.MetricSums()
        for number in range(passes):
            self._engine.set_gradient_accumulation_boundary(number == passes - 1)
            if number < len(batches):
                batch = self._collate([trained[i] for i in batches[number]], trained_only=True)
                output = self._loss(self._engine, batch, totals, loss, temperature, entropy)
                sums.add(output.metrics | {"loss": (output.loss, 0.0)})
                share = output.loss * distributed.world_size()
            else:
                share = self._forward(self._engine, empty(self.device), temperature, entropy).sum() * 0.0
            self._engine.backward(share)
        return sums.reduced()

    def _split(self, sequences: Seq[Sequence], group: int) -> tuple[list[Sequence], list[list[int]], Totals, int]:
        """The sequences with trained tokens, their micro-batches, and over all ranks the totals and most passes."""
        groups = (sequences[first : first + group] for first in range(0, len(sequences), group))
        trained = [s for each in groups if all(bool(s.mask.any()) for s in each) for s in each]
        batches = plan([len(s) for s in trained], self.config.micro_batch_tokens, self.config.packing, group)
        mine = [float(sum(int(s.mask.sum()) for s in trained)), float(len(trained)), float(len(batches))]
        everyone = distributed.all_gather_floats(mine)
        totals = Totals(int(sum(r[0] for r in everyone)), int(sum(r[1] for r in everyone)))
        if totals.tokens == 0:
            raise InvalidArgumentError("no sequence of this step has a trained token", reason="NOTHING_TO_TRAIN")
        return trained, batches, totals, int(max(r[2] for r in everyone))

    def _loss(
        self, module: Any, batch: MicroBatch, totals: Totals, loss: LossFn, temperature: float, entropy: bool
    ) -> LossOutput:
        outputs = self._forward(module, batch, temperature, entropy)
        rows = tuple(on_grid(row, batch) for row in outputs)
        seen = Batch(
            outputs_BT=rows[0],
            entropy_BT=rows[1] if entropy else None,
            rows_BT=rows,
            mask_BT=batch.mask_BT,
            lengths_B=batch.lengths_B,
            fields=batch.fields,
            scalars=batch.scalars,
        )
        return loss(seen, totals)

    def apply(self) -> dict[str, float]:
        """Clips and takes the optimizer step."""
        settings = self.config.optimizer
        rate = learning_rate(settings, self.steps, self.total_steps)
        for group in self._engine.optimizer.param_groups:
            group["lr"] = rate
        norm = None
        if clips_itself(self.config):
            limit = settings.max_grad_norm or float("inf")
            norm = nn.utils.clip_grad_norm_([p for p in self._engine.module.parameters() if p.requires_grad], limit)
        self._engine.step()
        self.steps += 1
        norm = self._engine.get_global_grad_norm() if norm is None else norm
        return {"grad_norm": float(norm), "learning_rate": rate}

    def gradients(self) -> Tensor:
        """The whole gradient after `accumulate`, before clipping: float32, flat, in the order of the parameters.

        All ranks call it together.
        """
        from deepspeed.utils import safe_get_full_grad

        parts = []
        for parameter in self._engine.module.parameters():
            if parameter.requires_grad:
                gradient = parameter.grad if self.config.zero_stage == 0 else None
                gradient = safe_get_full_grad(parameter) if gradient is None else gradient
                parts.append(gradient.detach().float().flatten().cpu())
        return torch.cat(parts)

    # -- weights and checkpoints --------------------------------------------------------------------------------

    def weight_manifest(self) -> list[tuple[str, str, tuple[int, ...]]]:
        """(name, dtype, shape) of what `export_weights` gives, in its order."""
        dtype = self.config.dtype
        return [(weight.name, dtype, weight.shape) for weight in self._weights]

    def export_weights(self) -> Iterator[tuple[str, Tensor]]:
        """(Hugging Face name, tensor) of all weights, tied ones once, adapters merged, in `config.dtype`.

        Under ZeRO-3 each is gathered while it is the current one, so every rank must iterate to the end. A tensor
        may alias the live weight: use or copy it before the next.
        """
        for name, tensor in export(self._weights, self._partitioned):
            yield name, tensor.to(getattr(torch, self.config.dtype))

    def save(self, folder: Path) -> None:
        """Writes weights, optimizer, schedule and RNG of every rank below `folder` (all ranks call it).

        The files are those of this number of ranks and this ZeRO stage. The caller makes the commit atomic.
        """
        folder.mkdir(parents=True, exist_ok=True)
        lora = self.config.lora is not None
        self._engine.save_checkpoint(str(folder), tag="engine", save_latest=False, exclude_frozen_parameters=lora)
        state.save_rank(folder, distributed.rank(), self.device)
        if distributed.rank() == 0:
            facts = {"steps": self.steps, "ranks": distributed.world_size(), "zero_stage": self.config.zero_stage}
            (folder / "learner.json").write_text(json.dumps(facts))
        distributed.barrier()

    def load(self, folder: Path) -> None:
        """Goes back to what `save` wrote (all ranks call it). The caller has checked the manifest.

        Raises ConfigError when it was written by another number of ranks or ZeRO stage.
        """
        facts = state.read_facts(folder, distributed.world_size(), self.config.zero_stage)
        self._engine.load_checkpoint(str(folder), tag="engine", load_module_strict=self.config.lora is None)
        state.load_rank(folder, distributed.rank(), self.device)
        self.steps = facts["steps"]
        distributed.barrier()

    def save_hf(self, folder: Path, tokenizer: PreTrainedTokenizerBase | None) -> None:
        """Writes a Hugging Face folder on rank 0 (all ranks call it)."""
        weights = self.export_weights()
        if distributed.rank() == 0:
            model = self._model
            backbone = model.backbone if isinstance(model, ValueModel) else model
            architecture = None
            if isinstance(model, ValueModel):
                architecture = type(backbone).__name__.removesuffix("Model") + "ForSequenceClassification"
            save_model(
                folder,
                backbone.config,
                weights,
                tokenizer,
                generation_config=getattr(backbone, "generation_config", None),
                architecture=architecture,
            )
        else:
            for _ in weights:
                pass
        distributed.barrier()

    # -- shared -------------------------------------------------------------------------------------------------

    def _collate(self, sequences: Seq[Sequence], *, trained_only: bool) -> MicroBatch:
        return collate(sequences, packing=self.config.packing, trained_only=trained_only, device=self.device)

    def _forward(self, module: Any, batch: MicroBatch, temperature: float, entropy: bool) -> Tensor:
        if isinstance(self._model, ValueModel):
            return module(batch)
        return module(batch, temperature, entropy)
