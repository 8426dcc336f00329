"""Whole evaluations of pairs against the stand-in of a judge."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlctl.evaluator.config import EvaluatorConfig, JudgeConfig, PriceConfig
from rlctl.evaluator.evaluate import Evaluation, evaluate
from rlctl.evaluator.standin import StandIn, verdict_by_rules

PRICE = PriceConfig(input_hit=1.0, input_miss=10.0, output=100.0)


def judging(tmp_path: Path, url: str, **more: Any) -> EvaluatorConfig:
    """Of what `write_pairs` wrote, by one judge at `url`."""
    settings: dict[str, Any] = {
        "outputs": tmp_path / "outputs", "gold": str(tmp_path / "gold.jsonl"), "output_dir": tmp_path / "report",
        "judges": [JudgeConfig(preset="local", model="m", base_url=url, price=PRICE)], "max_samples": 1000,
        "bootstrap": 500, "max_wait_s": 0.05, "concurrency": 8,
    }  # fmt: skip
    return EvaluatorConfig(**{**settings, **more})


def judge_pairs(
    tmp_path: Path, *faults: str, verdict: Callable[[str], Any] = verdict_by_rules, **more: Any
) -> tuple[Evaluation, StandIn]:
    """Evaluates what `write_pairs` wrote; the judge gives `verdict` after these faults."""

    async def run() -> tuple[Evaluation, StandIn]:
        async with StandIn(faults, verdict=verdict) as server:
            # A fixed name stands for the address, which is part of a verdict's key.
            more.setdefault("judges", [JudgeConfig(preset="local", model="m", base_url=server.base_url, price=PRICE)])
            return await evaluate(judging(tmp_path, server.base_url, **more)), server

    return asyncio.run(run())
