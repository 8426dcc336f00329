"""A whole evaluation by its settings: generate if asked, judge or grade, report. For the CLI and the service."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlctl.evaluator.asking import Progress
from rlctl.evaluator.config import EvaluatorConfig


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


async def _outputs(config: EvaluatorConfig, on_progress: Callable[[Progress], None]) -> Path:
    from rlctl.evaluator.making import make_outputs
    from rlctl.evaluator.serving import generation_service

    if config.generate.addresses:
        return await make_outputs(config, config.generate.addresses, on_progress)
    log_path = Path(config.output_dir) / "generation.log"
    with generation_service(config.generate.model, log_path, os.cpu_count() or 1) as service:
        making = asyncio.ensure_future(make_outputs(config, [service.address], on_progress))
        watching = asyncio.ensure_future(service.ended())
        try:
            await asyncio.wait((making, watching), return_when=asyncio.FIRST_COMPLETED)
            if not making.done():
                await watching
            return await making
        finally:
            making.cancel()
            watching.cancel()
            await asyncio.gather(making, watching, return_exceptions=True)
