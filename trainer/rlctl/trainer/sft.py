"""Supervised fine-tuning: cross-entropy on the responses' tokens.

examples ─ cursor ─► batch ─ this rank's share ─► learner.step ─► every eval_steps: held-out accuracy ─► model
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from rlctl.algorithms.aggregate import aggregate
from rlctl.algorithms.supervised import sft_loss
from rlctl.core.errors import FailedPreconditionError
from rlctl.data.cursor import PromptCursor
from rlctl.data.supervised import Example, load_supervised
from rlctl.learner import distributed
from rlctl.learner.batch import share_out
from rlctl.learner.learner import Batch, Learner, LossOutput, Totals
from rlctl.learner.sequence import Sequence
from rlctl.models.load import load_causal_lm, load_tokenizer
from rlctl.models.source import resolve
from rlctl.trainer.sft_config import SFTConfig
from rlctl.trainer.sft_eval import HeldOut, measure


@dataclass(frozen=True)
class SFTProgress:
    """Where training stands after a measurement, or at its end."""

    step: int
    steps: int
    loss: float
    """Mean cross-entropy of a response token, nats, since the last report."""
    held_out: HeldOut | None
    seconds: float
    """Since the first step."""


def train_sft(config: SFTConfig, report: Callable[[SFTProgress], None]) -> SFTProgress:
    """Trains, writes `config.output` in Hugging Face format, and returns how it ended.

    All ranks call it; `report` is called on rank 0 after each measurement. Raises FailedPreconditionError when
    `stop.accuracy` was not reached within `steps`, and whatever loading the model and the data raises.
    """
    torch.manual_seed(config.seed)
    folder = resolve(config.model)
    tokenizer = load_tokenizer(folder, config.learner.trust_remote_code)
    data = [to_sequence(example) for each in config.data for example in load_supervised(each, tokenizer)]
    held_out = None
    if config.eval_data is not None:
        held_out = [to_sequence(example) for example in load_supervised(config.eval_data, tokenizer)]
    model = load_causal_lm(
        folder,
        config.learner.dtype,
        config.learner.attention,
        trust_remote_code=config.learner.trust_remote_code,
    )
    learner = Learner(model, config.learner, total_steps=config.steps, seed=config.seed)

    def evaluate() -> HeldOut | None:
        return measure(model, held_out, config.learner) if held_out is not None else None

    end = _loop(config, learner, data, evaluate, report)
    aside = config.output.with_name(config.output.name + ".tmp")
    if distributed.rank() == 0:
        shutil.rmtree(aside, ignore_errors=True)
    learner.save_hf(aside, tokenizer)
    if distributed.rank() == 0:
        shutil.rmtree(config.output, ignore_errors=True)
        aside.rename(config.output)
    return end


def _loop(
    config: SFTConfig,
    learner: Learner,
    data: list[Sequence],
    evaluate: Callable[[], HeldOut | None],
    report: Callable[[SFTProgress], None],
) -> SFTProgress:
    cursor = PromptCursor(len(data), config.shuffle, config.seed)
    losses: list[float] = []
    seen: HeldOut | None = None
    began = time.monotonic()
    for step in range(1, config.steps + 1):
        batch = [data[position.index] for position in cursor.take(config.batch_size)]
        mine = share_out([len(s) for s in batch], distributed.world_size())[distributed.rank()]
        losses.append(learner.step([batch[index] for index in mine], objective)["loss"])
        watching = config.stop is not None and seen is not None and seen.accuracy > config.stop.watch_above
        every = config.stop.watch_steps if watching and config.stop else config.eval_steps
        if step % every and step < config.steps:
            continue
        seen = evaluate()
        progress = SFTProgress(step, config.steps, sum(losses) / len(losses), seen, time.monotonic() - began)
        losses.clear()
        if distributed.rank() == 0:
            report(progress)
        if config.stop is not None and seen is not None and seen.accuracy >= config.stop.accuracy:
            return progress
    if config.stop is not None:
        raise FailedPreconditionError(
            f"held-out accuracy did not reach {config.stop.accuracy} in {config.steps} steps "
            f"(it is {seen.accuracy if seen else 0:.2f}); raise steps, or try another seed or learning rate",
            reason="NOT_LEARNT",
        )
    return progress


def objective(batch: Batch, totals: Totals) -> LossOutput:
    """Cross-entropy, the mean over all response tokens of the optimizer step."""
    loss = aggregate(
        sft_loss(batch.logprobs_BT, batch.mask_BT),
        batch.mask_BT,
        "token",
        total_tokens=totals.tokens,
        total_sequences=totals.sequences,
        max_len=1,
    )
    return LossOutput(loss)


def to_sequence(example: Example) -> Sequence:
    """The learnt tokens of the response are trained; none of the prompt."""
    return Sequence(
        prompt_ids=torch.tensor(example.prompt_ids, dtype=torch.int64),
        response_ids=torch.tensor(example.response_ids, dtype=torch.int64),
        mask=torch.tensor(example.mask, dtype=torch.bool),
    )
