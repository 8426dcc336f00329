"""Prometheus metrics of a generation replica."""

from __future__ import annotations

from prometheus_client import Counter, Gauge

PROMPTS = Counter("rlctl_generation_prompts", "Prompts answered.")
TOKENS = Counter("rlctl_generation_tokens", "Response tokens.")
RUNNING = Gauge("rlctl_generation_running", "Responses in work or waiting.")
VERSION = Gauge("rlctl_generation_policy_version", "Policy version that is served.")
UPDATES = Counter("rlctl_generation_updates", "Weight updates, by how they ended.", ["outcome"])
