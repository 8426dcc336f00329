"""A whole evaluation by its settings: generate if asked, judge or grade, report. For the CLI and the service."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlctl.evaluator.asking import Progress
from rlctl.evaluator.config import EvaluatorConfig

if TYPE_CHECKING:
    from rlctl.evaluator.evaluate import Estimate


async def run_job(config: EvaluatorConfig, on_progress: Callable[[Progress], None] = lambda _: None) -> dict[str, Any]:
    """Runs it and writes the report; returns the summary. Cancelled, it keeps what it has. Raises RlctlError."""
    if config.generate.model:
        outputs, every = await _outputs(config, on_progress), config.max_samples * config.generate.samples
        config = config.model_copy(update={"outputs": outputs, "max_samples": every})
    if config.mode == "single":
        from rlctl.evaluator.single import evaluate_single

        loop = asyncio.get_running_loop()

        def forward(progress: Progress) -> None:
            loop.call_soon_threadsafe(on_progress, progress)

        return await asyncio.to_thread(evaluate_single, config, forward)
    from rlctl.evaluator.evaluate import evaluate
    from rlctl.evaluator.report import write_report

    evaluation = await evaluate(config, on_progress)
    await asyncio.to_thread(write_report, evaluation)
    return evaluation.summary


def estimate_job(config: EvaluatorConfig) -> Estimate:
    """What a run would ask for; outputs that are not generated yet count as long as they may become."""
    from rlctl.evaluator.evaluate import Estimate, estimate, estimate_of, read_rows
    from rlctl.evaluator.gold import Match
    from rlctl.evaluator.making import prompts
    from rlctl.evaluator.records import Text

    if not config.generate.model:
        return estimate(config) if config.mode == "pair" else Estimate(len(read_rows(config)[0]), 0, 0, 0, 0.0)
    rows = prompts(config)
    if config.mode == "single":
        return Estimate(len(rows), 0, 0, 0, 0.0)
    # A token is rarely more than four characters.
    output = "x" * (4 * config.generate.max_tokens)
    return estimate_of(config, ((Text(row["prompt"], output), Match("explicit")) for row in rows))


async def _outputs(config: EvaluatorConfig, on_progress: Callable[[Progress], None]) -> Path:
    from rlctl.evaluator.judge import PRESETS
    from rlctl.evaluator.making import make_outputs
    from rlctl.evaluator.serving import generation_service
    from rlctl.rpc.own import alongside

    if config.generate.addresses:
        return await make_outputs(config, config.generate.addresses, on_progress)
    log_path = Path(config.output_dir) / "generation.log"
    keys = {preset.api_key_env for preset in PRESETS.values()} | {judge.api_key_env for judge in config.judges}
    with generation_service(config.generate.model, log_path, os.cpu_count() or 1, keys) as service:
        return await alongside(make_outputs(config, [service.address], on_progress), [service])
