"""Prometheus metrics of a rollout worker.

| name | labels | meaning |
|---|---|---|
| `rlctl_rollout_groups_total` | result | groups settled: `stored`, `failed` (stored as an error), `skipped` |
| `rlctl_rollout_samples_total` | | samples stored |
| `rlctl_rollout_tokens_total` | | response tokens stored |
| `rlctl_rollout_reward_errors_total` | | samples stored without a reward |
| `rlctl_rollout_seconds` | phase | histogram, a group each: `generate`, `score` (with the wait for others), `store` |
| `rlctl_rollout_in_work` | phase | groups in that phase now |
| `rlctl_rollout_retries_total` | service | calls that had to be repeated |
"""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

GROUPS = Counter("rlctl_rollout_groups", "Prompt groups settled.", ["result"])
SAMPLES = Counter("rlctl_rollout_samples", "Samples stored.")
TOKENS = Counter("rlctl_rollout_tokens", "Response tokens stored.")
REWARD_ERRORS = Counter("rlctl_rollout_reward_errors", "Samples stored without a reward.")
SECONDS = Histogram(
    "rlctl_rollout_seconds",
    "Seconds a group spends in a phase.",
    ["phase"],
    buckets=(0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000),
)
IN_WORK = Gauge("rlctl_rollout_in_work", "Groups in a phase.", ["phase"])
RETRIES = Counter("rlctl_rollout_retries", "Calls that had to be repeated.", ["service"])
