"""One offline training from settings to a saved model."""

from __future__ import annotations

import logging
import math
import shutil
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import torch

from rlctl.core.durable import fsync_tree
from rlctl.core.errors import FailedPreconditionError
from rlctl.data.load import load_data
from rlctl.data.mix import mix
from rlctl.data.template import tokenizer_to_save
from rlctl.learner import distributed
from rlctl.models.load import load_tokenizer
from rlctl.models.source import resolve
from rlctl.offline.config import AccuracyStop, JobConfig, SFTConfig
from rlctl.offline.jobs import PARTS, Place
from rlctl.offline.loop import Loop, Reached
from rlctl.offline.objective import Objective
from rlctl.offline.summary import write_summary

logger = logging.getLogger(__name__)

#: Folder of the trained model below the run's.
MODEL = "model"


def train(
    config: JobConfig,
    report: Callable[[Reached], None] = lambda reached: None,
    stop: Callable[[], bool] = lambda: False,
) -> Reached:
    """Trains, or goes on with, a run; its model is written to `run_dir/model` in Hugging Face format.

    All ranks call it; `report` is called on rank 0 after each measurement, and `stop` before each step: where it is
    true, the run is committed and ends. Raises FailedPreconditionError when a `stop.accuracy` was not reached
    within the steps, and whatever loading the model and the data raises.
    """
    torch.manual_seed(config.seed)
    parts = PARTS[config.job]
    folder = resolve(config.model)
    tokenizer = load_tokenizer(folder, config.learner.trust_remote_code)
    held_out = load_data(config.eval_data, tokenizer) if config.eval_data is not None else None
    data = mix(
        config.training_data,
        lambda each: load_data(each, tokenizer),
        held_out,
        [config.eval_data] if config.eval_data is not None else [],
    )
    items = parts.to_items(data.items)
    held_out_items = parts.to_items(held_out) if held_out is not None else []
    steps = config.steps or max(1, math.ceil(config.epochs * len(items) / config.batch_size))
    config.run_dir.mkdir(parents=True, exist_ok=True)
    with closing(parts.build(config, Place(folder, tokenizer, steps))) as objective:
        if distributed.rank() == 0:
            _tell_data([*data.counts, *([held_out.counts] if held_out is not None else [])])
        objective.prepare(items, held_out_items)
        # A template's file is read before the steps, with which it might go.
        saved = tokenizer_to_save(config.training_data, tokenizer)
        cursor = data.cursor(config.shuffle, config.seed)
        loop = Loop(config, objective.learner, objective, items, held_out_items, cursor, steps)
        early = config.stop if isinstance(config, SFTConfig) else None
        if early is None:
            end = loop.run(report, stop=stop)
        else:
            end = loop.run(report, partial(_period, early, config.eval_steps), partial(_enough, early), stop)
            _check_learnt(early, end)
        if not end.stopped:
            _save(objective, config.run_dir / MODEL, saved, end)
        if distributed.rank() == 0:
            write_summary(config, end, len(items), len(held_out_items))
        return end


def _period(early: AccuracyStop, usual: int, measured: dict[str, float] | None) -> int:
    watching = measured is not None and measured["accuracy"] > early.watch_above
    return early.watch_steps if watching else usual


def _enough(early: AccuracyStop, measured: dict[str, float]) -> bool:
    return measured["accuracy"] >= early.accuracy


def _check_learnt(early: AccuracyStop, end: Reached) -> None:
    accuracy = end.held_out["accuracy"] if end.held_out is not None else 0.0
    if not end.stopped and accuracy < early.accuracy:
        raise FailedPreconditionError(
            f"held-out accuracy did not reach {early.accuracy} in {end.steps} steps (it is {accuracy:.2f}); raise "
            "steps, or try another seed or learning rate",
            reason="NOT_LEARNT",
        )


def _save(objective: Objective, final: Path, tokenizer: Any, end: Reached) -> None:
    """The model, written aside and renamed (all ranks call it)."""
    aside = final.with_name(final.name + ".tmp")
    if distributed.rank() == 0:
        shutil.rmtree(aside, ignore_errors=True)
    distributed.barrier()
    objective.learner.save_hf(aside, tokenizer)
    if distributed.rank() == 0:
        objective.finish(aside, tokenizer, end.held_out or {})
        fsync_tree(aside)
        shutil.rmtree(final, ignore_errors=True)
        aside.rename(final)
    distributed.barrier()


def _tell_data(counts: list[dict[str, int]]) -> None:
    for each in counts:
        taken = ", ".join(f"{name} {count}" for name, count in each.items() if count and name not in ("rows", "kept"))
        logger.info("data: %d of %d rows kept%s", each["kept"], each["rows"], f" ({taken})" if taken else "")
