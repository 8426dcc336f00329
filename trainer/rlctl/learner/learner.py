"""One DeepSpeed engine around one model: forward, step, checkpoint, export.

    sequences -> micro-batches by token budget -> forward -> loss / global totals -> backward -> clip -> AdamW

The loss of a step does not depend on how it is split. A LossFn divides by the *global* totals, so that the sum over
micro-batches and ranks is the loss; DeepSpeed averages gradients over ranks, which a factor of the rank count undoes.
A rank with fewer micro-batches than another runs empty ones of which the loss is exactly 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from rlctl.learner import distributed, folders, state
from rlctl.learner.batch import MicroBatch
from rlctl.learner.batches import Batches
from rlctl.learner.config import LearnerConfig
from rlctl.learner.ema import WeightAverage
from rlctl.learner.engine import build_engine, clip, whole_gradient
from rlctl.learner.export import Weights
from rlctl.learner.forward import PolicyForward, ValueForward, on_grid, split
from rlctl.learner.loss import Batch, LossFn, LossOutput, Part
from rlctl.learner.prepare import prepare
from rlctl.learner.prompts import can_share
from rlctl.learner.schedule import learning_rate
from rlctl.learner.sequence import Sequence
from rlctl.learner.share import Share, pool
from rlctl.learner.skips import Skips
from rlctl.models.dropout import draws
from rlctl.models.value_head import ValueModel


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
        self._skips = Skips()
        torch.manual_seed(seed + distributed.rank())
        assert isinstance(model, ValueModel) == value
        self._group = distributed.sequence_group(config.sequence_parallel)
        model = prepare(model, config, self.device)
        self._model = model
        module = ValueForward(model) if isinstance(model, ValueModel) else forward(model, config.logits_chunk)
        module.balance = config.aux_loss_coef > 0
        # The load-balancing loss counts tokens, and ranks that share sequences cut rows by columns.
        whole = self._group is None and not module.balance
        shares = whole and can_share(model.config, config.packing)
        self._batches = Batches(config, self._group, self.device, shares)
        self._partitioned = config.zero_stage == 3
        self._weights = Weights(model, self._partitioned)
        self._engine = build_engine(module, config, distributed.world_size(), self.device)
        self._average: WeightAverage | None = None
        if config.ema_decay is not None:
            self._average = WeightAverage(module, config.ema_decay, self._partitioned, distributed.rank())

    @property
    def model_config(self) -> PretrainedConfig:
        """The Hugging Face configuration of the model."""
        return self._model.config

    @property
    def draws(self) -> bool:
        """Whether a forward pass of `step` draws at random, and differs from that of `logprobs` under equal weights."""
        return draws(self._model, self.model_config)

    # -- without gradient ---------------------------------------------------------------------------------------

    def logprobs(self, sequences: Seq[Sequence], temperature: float = 1.0, entropy: bool = False) -> list[Tensor]:
        """Log-probs of all response tokens (or, with `entropy`, the entropies), float32 `[T]` each, on the CPU.

        Of this rank's sequences, in their order. Under ZeRO-3 and sequence parallelism all ranks call it together.
        """
        return self._infer(sequences, temperature, entropy)

    def values(self, sequences: Seq[Sequence]) -> list[Tensor]:
        """The value of the state before each response token, float32 `[T]` each, on the CPU."""
        return self._infer(sequences)

    @torch.no_grad()
    def _infer(self, sequences: Seq[Sequence], temperature: float = 1.0, entropy: bool = False) -> list[Tensor]:
        self._engine.eval()
        own = len(sequences)
        sequences, first = pool(sequences, self._group)
        results: list[Tensor] = [torch.empty(0)] * len(sequences)
        batches = self._batches.plan(sequences)
        passes = self._passes(len(batches))
        for indices in batches:
            batch = self._batches.collate([sequences[i] for i in indices], trained_only=False)
            outputs, _ = self._forward(self._engine.module, batch, temperature, entropy)
            for index, part in zip(indices, split(outputs[1 if entropy else 0].cpu(), batch), strict=True):
                results[index] = part
        for _ in range(passes - len(batches)):
            self._forward(self._engine.module, self._batches.empty(), temperature, entropy)
        return results[first : first + own]

    @torch.no_grad()
    def measure(self, sequences: Seq[Sequence], loss: LossFn, *, group: int = 1) -> dict[str, float]:
        """The metrics of `loss`, and `loss`, over the sequences of all ranks, which call it together.

        In eval mode, without a gradient; `group` as of `step`.
        """
        self._engine.eval()
        share = self._batches.split_up(Part(sequences, loss, group=group))
        sums = state.MetricSums()
        for indices in share.batches:
            output, _ = self._loss(self._engine.module, share, indices)
            self._count(sums, output)
        for _ in range(share.passes - len(share.batches) if self._partitioned else 0):
            self._forward(self._engine.module, self._batches.empty(), 1.0, False)
        return sums.reduced()

    def _passes(self, count: int) -> int:
        """Forward passes to run: under ZeRO-3 as many as the rank with most, which must be known before the first."""
        if not self._partitioned:
            return count
        return int(max(n for (n,) in distributed.all_gather_floats([count])))

    # -- with gradient ------------------------------------------------------------------------------------------

    def step(
        self,
        sequences: Seq[Sequence],
        loss: LossFn,
        *,
        temperature: float = 1.0,
        entropy: bool = False,
        group: int = 1,
        also: Seq[Part] = (),
    ) -> dict[str, float]:
        """One optimizer step over the shares of all ranks (all call it together; a share may be empty).

        Every `group` neighbours of `sequences` meet in one micro-batch (in any order there, and left out together
        when one has no trained token). The gradients of `also`, each over its own totals, are added. Returns the
        metrics of the losses, their sum `loss`, what `apply` gives (`grad_norm` is that before clipping) and, of a
        mixture of experts, `aux_loss`, the same on every rank. Raises InvalidArgumentError when no rank has a trained
        token.
        """
        metrics = self.accumulate(sequences, loss, temperature=temperature, entropy=entropy, group=group, also=also)
        return metrics | self.apply()

    def accumulate(
        self,
        sequences: Seq[Sequence],
        loss: LossFn,
        *,
        temperature: float = 1.0,
        entropy: bool = False,
        group: int = 1,
        also: Seq[Part] = (),
    ) -> dict[str, float]:
        """The backward passes of a step, up to the reduced gradient. `apply` must follow."""
        parts = [Part(sequences, loss, temperature, entropy, group), *also]
        shares = [self._batches.split_up(part) for part in parts]
        everything = sum(share.length for share in shares)
        self._engine.train()
        sums = state.MetricSums()
        left = sum(share.passes for share in shares)
        for share in shares:
            for number in range(share.passes):
                left -= 1
                self._engine.set_gradient_accumulation_boundary(left == 0)
                if number < len(share.batches):
                    total = self._train(share, share.batches[number], everything, sums)
                else:
                    outputs, balance = self._forward(
                        self._engine, self._batches.empty(), share.part.temperature, share.part.entropy
                    )
                    total = outputs.sum() * 0.0 + (0.0 if balance is None else balance * 0.0)
                self._engine.backward(total * distributed.world_size())
        return sums.reduced()

    def _train(self, share: Share, indices: list[int], everything: int, sums: state.MetricSums) -> Tensor:
        """What one micro-batch adds to the loss of the step, `everything` tokens long.

        The load-balancing loss is not linear in the tokens (it is a product of two means), so it cannot be
        independent of the split; a micro-batch's weighs as much as its share of all tokens.
        """
        output, balance = self._loss(self._engine, share, indices)
        self._count(sums, output)
        if balance is None:
            return output.loss
        tokens = float(sum(len(share.trained[index]) for index in indices))
        if self._group is None or self._group.rank == 0:
            sums.add({"aux_loss": (balance.detach() * tokens, tokens)})
        return output.loss + self.config.aux_loss_coef * tokens / everything * balance

    def _count(self, sums: state.MetricSums, output: LossOutput) -> None:
        """The ranks of a sequence-parallel group have the same numbers: one of them counts."""
        if self._group is None or self._group.rank == 0:
            sums.add(output.metrics | {"loss": (output.loss, 0.0)})

    def _loss(self, module: Any, share: Share, indices: list[int]) -> tuple[LossOutput, Tensor | None]:
        part = share.part
        batch = self._batches.collate([share.trained[index] for index in indices], trained_only=True)
        outputs, balance = self._forward(module, batch, part.temperature, part.entropy)
        rows = tuple(on_grid(row, batch) for row in outputs)
        seen = Batch(
            outputs_BT=rows[0],
            entropy_BT=rows[1] if part.entropy else None,
            rows_BT=rows,
            mask_BT=batch.mask_BT,
            lengths_B=batch.lengths_B,
            fields=batch.fields,
            scalars=batch.scalars,
        )
        return part.loss(seen, share.totals), balance

    def apply(self) -> dict[str, float]:
        """Clips and takes the optimizer step, which is left out (`skipped`) where the gradient is not finite.

        Raises FutileError when that happens many times in a row.
        """
        settings = self.config.optimizer
        rate = learning_rate(settings, self.steps, self.total_steps)
        for group in self._engine.optimizer.param_groups:
            group["lr"] = rate
        norm = clip(self._engine.module, self.config)
        self._engine.step()
        self.steps += 1
        if self._average is not None:
            self._average.update()
        if norm is None:
            norm = math.inf if self._engine.optimizer.overflow else float(self._engine.get_global_grad_norm())
        skipped = math.isinf(norm)
        self._skips.note(skipped)
        return {"grad_norm": norm, "skipped": float(skipped), "learning_rate": rate}

    def gradients(self) -> Tensor:
        """The whole gradient after `accumulate`, before clipping: float32, flat, in the order of the parameters.

        All ranks call it together.
        """
        return whole_gradient(self._engine, self.config)

    # -- weights and checkpoints --------------------------------------------------------------------------------

    def weight_manifest(self) -> list[tuple[str, str, tuple[int, ...]]]:
        """(name, dtype, shape) of what `export_weights` gives, in its order."""
        dtype = self.config.dtype
        return [(name, dtype, shape) for name, shape in self._weights.shapes()]

    def export_weights(self) -> Iterator[tuple[str, Tensor]]:
        """(Hugging Face name, tensor) of all weights, tied ones once, adapters merged, in `config.dtype`.

        Under ZeRO-3 each is gathered while it is the current one, so every rank must iterate to the end. A tensor
        may alias the live weight: use or copy it before the next.
        """
        for name, tensor in self._weights:
            yield name, tensor.to(getattr(torch, self.config.dtype))

    def averaged(self) -> AbstractContextManager[None]:
        """Inside the block the model is its moving average (`ema_decay`), for evaluation and export."""
        return nullcontext() if self._average is None else self._average.swapped_in()

    def save(self, folder: Path) -> None:
        """Writes weights, optimizer, schedule, average and RNG of every rank below `folder` (all ranks call it).

        The files are those of this number of ranks and this ZeRO stage. The caller makes the commit atomic.
        """
        state.save(folder, self._engine, self._average, self.config, self.steps, self.device)

    def load(self, folder: Path) -> None:
        """Goes back to what `save` wrote (all ranks call it). The caller has checked the manifest.

        Raises ConfigError when it was written by another number of ranks or ZeRO stage.
        """
        self.steps = state.load(folder, self._engine, self._average, self.config, self.device)

    def save_hf(self, folder: Path, tokenizer: PreTrainedTokenizerBase | None) -> None:
        """Writes a Hugging Face folder on rank 0 (all ranks call it).

        Adapters are merged, and lie in its folder `adapter` too, as peft loads them. The moving average is in the
        folder `ema`, or with `ema_as_model` it is the model.
        """
        with self.averaged() if self.config.ema_as_model else nullcontext():
            self._write(folder, tokenizer)
        if self._average is not None and not self.config.ema_as_model:
            with self.averaged():
                self._write(folder / folders.EMA, tokenizer)

    def _write(self, folder: Path, tokenizer: PreTrainedTokenizerBase | None) -> None:
        folders.write(folder, self._model, self.export_weights(), tokenizer)
        if self.config.lora is not None:
            folders.write_adapter(folder / folders.ADAPTER, self._model, self._partitioned)
        distributed.barrier()

    # -- shared -------------------------------------------------------------------------------------------------

    def _forward(
        self, module: Any, batch: MicroBatch, temperature: float, entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        """The outputs `[C, K]`, and the load-balancing loss where it is asked for."""
        arguments = () if isinstance(self._model, ValueModel) else (temperature, entropy)
        found = module(batch, *arguments)
        return found if isinstance(found, tuple) else (found, None)
