"""The reward of a response: the weighted sum of its scorers."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from prometheus_client import Counter, Histogram

from rlctl.core.errors import ConfigError
from rlctl.reward.config import RewardSettings, ScorerConfig
from rlctl.reward.scorer import Fault, Item, Outcome, Score, Scorer

ITEMS = Counter("rlctl_reward_items", "Responses scored, by scorer and outcome.", ["scorer", "outcome"])
SECONDS = Histogram("rlctl_reward_seconds", "Seconds of a scorer for one call.", ["scorer"])


@dataclass
class Reward:
    """Of one item: `outcome` is the weighted sum or the first scorer's fault; `components` are unweighted."""

    outcome: Outcome
    components: dict[str, float] = field(default_factory=dict)


class RewardEngine:
    """Runs every scorer on every item, all scorers at once."""

    def __init__(self, settings: RewardSettings) -> None:
        self.configs = settings.scorers
        self._trust_remote_code = settings.trust_remote_code
        self._scorers: list[Scorer] = []

    async def load(self) -> None:
        """Loads the scorers one after another. Raises ConfigError or NotFoundError."""
        for config in self.configs:
            scorer = self._make(config)
            self._scorers.append(scorer)
            await scorer.load()

    async def score(self, items: list[Item]) -> list[Reward]:
        """One reward an item, in order."""
        if not items:
            return []
        columns = await asyncio.gather(
            *(self._run(c, s, items) for c, s in zip(self.configs, self._scorers, strict=True))
        )
        return [self._combine(row) for row in zip(*columns, strict=True)]

    async def close(self) -> None:
        """Ends the scorers that were loaded."""
        for scorer in self._scorers:
            await scorer.close()

    async def _run(self, config: ScorerConfig, scorer: Scorer, items: list[Item]) -> list[Outcome]:
        begin = time.perf_counter()
        outcomes = await scorer.score(items)
        SECONDS.labels(config.label).observe(time.perf_counter() - begin)
        assert len(outcomes) == len(items)
        for outcome in outcomes:
            ITEMS.labels(config.label, outcome.reason if isinstance(outcome, Fault) else "OK").inc()
        return outcomes

    def _combine(self, row: tuple[Outcome, ...]) -> Reward:
        total, fault = 0.0, None
        reward = Reward(Score(0.0))
        logs: dict[str, float] = {}
        for config, outcome in zip(self.configs, row, strict=True):
            if isinstance(outcome, Fault):
                fault = fault or Fault(outcome.reason, f"{config.label}: {outcome.message}")
                continue
            total += config.weight * outcome.reward
            reward.components[config.label] = outcome.reward
            logs |= outcome.extra_logs
        reward.outcome = fault or Score(total, logs)
        return reward

    def _make(self, config: ScorerConfig) -> Scorer:
        if config.kind == "model":
            from rlctl.reward.model_scorer import ModelScorer

            return ModelScorer(
                config.model,
                config.dtype,
                max_length=config.max_length,
                batch_tokens=config.batch_tokens,
                normalize=config.normalize,
                trust_remote_code=self._trust_remote_code,
            )
        if config.kind == "http":
            from rlctl.reward.http_scorer import HttpScorer

            return HttpScorer(config.url, config.timeout_s)
        if config.kind == "grader":
            from rlctl.reward.grader_scorer import GraderScorer

            return GraderScorer()
        from rlctl.reward.sandboxed_scorer import SandboxedScorer

        if config.kind == "task":
            arguments = ["task", config.task]
        else:
            assert config.path is not None
            path = config.path.expanduser().resolve()
            if not path.is_file():
                raise ConfigError(f"scorer {config.label!r}: there is no file {path}; set path to your Python file")
            arguments = ["function", str(path)]
        return SandboxedScorer(config.label, arguments, memory_mb=config.memory_mb, timeout_s=config.timeout_s)
