"""What judges cost, and how many tokens a call may take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rlctl.evaluator.config import PriceConfig

#: Day the table below was read from the providers' price pages.
PRICES_DATE = "2026-11"

#: By model, US dollars per million tokens. DeepSeek at its peak hours; off-peak is half of it.
PRICES: dict[str, PriceConfig] = {
    "deepseek-flash": PriceConfig(input_hit=0.006, input_miss=0.30, output=1.20),
    "deepseek-v4-pro": PriceConfig(input_hit=0.044, input_miss=1.32, output=3.96),
}


@dataclass
class Usage:
    """Tokens of one call or the sum of many."""

    calls: int = 0
    input_hit: int = 0
    input_miss: int = 0
    output: int = 0
    reasoning: int = 0
    models: dict[str, int] = field(default_factory=dict)

    def add(self, other: Usage) -> None:
        self.calls += other.calls
        self.input_hit += other.input_hit
        self.input_miss += other.input_miss
        self.output += other.output
        self.reasoning += other.reasoning
        for model, count in other.models.items():
            self.models[model] = self.models.get(model, 0) + count

    def cost(self, price: PriceConfig | None) -> float | None:
        """US dollars; None without a price."""
        if price is None:
            return None
        return (
            self.input_hit * price.input_hit + self.input_miss * price.input_miss + self.output * price.output
        ) / 1_000_000  # fmt: skip


def usage_of(raw: Mapping[str, object], model: str) -> Usage:
    """Reads an API's `usage`: DeepSeek's cache counters, or OpenAI's `prompt_tokens_details.cached_tokens`."""
    prompt, output = _count(raw.get("prompt_tokens")), _count(raw.get("completion_tokens"))
    details = raw.get("prompt_tokens_details")
    hit = _count(raw.get("prompt_cache_hit_tokens"))
    if not hit and isinstance(details, Mapping):
        hit = _count(details.get("cached_tokens"))
    miss = _count(raw.get("prompt_cache_miss_tokens")) or max(0, prompt - hit)
    spent = raw.get("completion_tokens_details")
    reasoning = _count(spent.get("reasoning_tokens")) if isinstance(spent, Mapping) else 0
    return Usage(1, hit, miss, output, reasoning, {model: 1})


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def most_tokens(messages: Sequence[Mapping[str, str]]) -> int:
    """No tokenizer in use makes more tokens of a text than it has bytes; each message adds a few marks."""
    return sum(len(message["content"].encode("utf-8", "replace")) + 16 for message in messages)
