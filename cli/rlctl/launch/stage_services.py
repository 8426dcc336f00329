"""The services of a stage: started on this machine for the time they are needed, and gone with it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rlctl.core.config import StrictConfig
from rlctl.launch.launcher import local_gpus
from rlctl.launch.loop_recipe import OwnGenerationSection
from rlctl.launch.plan import environment
from rlctl.reference.config import ReferenceSettings
from rlctl.reward.config import RewardSettings
from rlctl.rpc.own import OwnService, own_service

HIDDEN = {"CUDA_VISIBLE_DEVICES": ""}


@contextmanager
def generation_services(
    section: OwnGenerationSection, policy: str, logs: Path, *, on_gpus: bool
) -> Iterator[list[OwnService]]:
    """The replicas of a policy, all of which serve. Raises UnavailableError."""
    settings = _settings(section, "replicas", "start_timeout_s")
    gpus = _gpus() if on_gpus else []
    width = section.tensor_parallel
    with ExitStack() as stack:
        services = []
        for index in range(section.replicas):
            seats = {"CUDA_VISIBLE_DEVICES": ",".join(gpus[index * width : (index + 1) * width])}
            service = own_service(
                "generation",
                settings | {"model": policy, "seed": section.seed + index},
                logs / f"generation-{index}.log",
                environment=environment(section.threads, [policy]) | seats,
            )
            services.append(stack.enter_context(service))
        for one in services:
            one.wait(section.start_timeout_s)
        yield services


@contextmanager
def reward_service(section: RewardSettings, logs: Path, *, on_gpus: bool, timeout_s: float) -> Iterator[OwnService]:
    """One that serves, within `timeout_s`. Raises UnavailableError."""
    models = [scorer.model for scorer in section.scorers if scorer.kind == "model"]
    variables = environment(section.threads, models) | ({} if on_gpus else HIDDEN)
    settings = _settings(section, "addresses", "timeout_s")
    with own_service("reward", settings, logs / "reward-0.log", environment=variables) as service:
        service.wait(timeout_s)
        yield service


@contextmanager
def reference_service(
    section: ReferenceSettings, logs: Path, *, on_gpus: bool, timeout_s: float
) -> Iterator[OwnService]:
    """One that serves, within `timeout_s`. Raises UnavailableError."""
    variables = environment(section.threads, [section.model]) | ({} if on_gpus else HIDDEN)
    with own_service("reference", _settings(section), logs / "reference-0.log", environment=variables) as service:
        service.wait(timeout_s)
        yield service


def _gpus() -> list[str]:
    """Those of this machine that we may use."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return list(map(str, range(local_gpus()))) if visible is None else [gpu for gpu in visible.split(",") if gpu]


def _settings(section: StrictConfig, *without: str) -> dict[str, Any]:
    """What a service reads, without what only the launcher does."""
    tree = section.model_dump(mode="json", exclude=set(without))
    return {name: value for name, value in tree.items() if value is not None}
