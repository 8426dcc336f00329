"""`rlctl eval --demo`: the whole evaluator, offline, on 50 bundled records and a stand-in for the judge."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from rlctl.evaluator.config import EvaluatorConfig, JudgeConfig, PriceConfig
from rlctl.evaluator.records import digest
from rlctl.evaluator.standin import StandIn, verdict_by_rules

FOLDER = Path(__file__).parent / "demo"

#: The stand-in misbehaves a little, as real APIs do. All of it is mended by asking again; one bundled verdict is prose
#: every time, and so its record stays unscored.
FAULTS = ("fenced", "429-retry-after", "python", "think", "prose", "blank", "error-200", "drip", "blank-lines")

_PARTS = re.compile(r"<prompt>\n(?P<prompt>.*?)\n</prompt>\s*<output>\n(?P<output>.*)\n</output>", re.S)


def verdicts() -> Callable[[str], dict[str, Any] | str]:
    """The hand-made verdicts, found by sample; samples that are not bundled are judged by rules."""
    known: dict[tuple[str, str], dict[str, Any] | str] = {}
    for line in (FOLDER / "verdicts.jsonl").read_text(encoding="utf-8").split("\n"):
        if line:
            entry = json.loads(line)
            known[entry["prompt"], entry["output"]] = entry["verdict"]

    def verdict(user: str) -> dict[str, Any] | str:
        found = _PARTS.search(user)
        if found is None:
            return verdict_by_rules(user)
        key = (digest(found["prompt"])[:16], digest(found["output"].replace("‹", "<"))[:16])
        return known.get(key) or verdict_by_rules(user)

    return verdict


def demo_config(base: EvaluatorConfig, base_url: str) -> EvaluatorConfig:
    """The user's settings with the bundled data and the stand-in as judge."""
    judge = JudgeConfig(
        preset="local", name="stand-in", model="stand-in-1", base_url=base_url,
        price=PriceConfig(input_hit=0.006, input_miss=0.3, output=1.2),
    )  # fmt: skip
    return base.model_copy(
        update={
            "outputs": FOLDER / "outputs", "gold": str(FOLDER / "gold.jsonl"), "judges": [judge], "swap_check": False,
            "mode": "pair", "prompt_template": None, "max_cost": None, "max_wait_s": 1.0, "max_samples": 100,
        }
    )  # fmt: skip


async def demonstrate(
    base: EvaluatorConfig, run: Callable[[EvaluatorConfig], Coroutine[Any, Any, dict[str, Any]]]
) -> dict[str, Any]:
    """Runs `run` (a job) on the bundled data against the stand-in; returns its summary."""
    async with StandIn(FAULTS, latency_s=0.02, verdict=verdicts()) as server:
        return await run(demo_config(base, server.base_url))
