"""From the recipe of an offline trainer to its processes, and what can be found wrong with it before."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from typing import Any

from rlctl.core.errors import ConfigError
from rlctl.launch import memory
from rlctl.launch.machine_checks import gpu_faults, library_faults, memory_faults
from rlctl.launch.plan import LEARNERS, environment, gigabytes, training_mb
from rlctl.launch.source_checks import data_faults, model_faults
from rlctl.launch.spec import Plan, ProcessSpec
from rlctl.launch.training_recipe import TrainingRecipe, models_of
from rlctl.offline.config import DPOConfig, KTOConfig


def plan_training(recipe: TrainingRecipe, models: Mapping[str, str], *, gpu: bool) -> Plan:
    """One process a rank. `models` are the folders (or the names, where they are not here yet) by setting."""
    tree = recipe.model_dump(mode="json", exclude={"cluster"})
    tree["runs_dir"] = str(recipe.runs_dir.resolve())
    for name, model in models.items():
        _set(tree, name, model)
    learner = recipe.learner
    need = training_mb(learner, models["model"]) + _frozen_mb(recipe, models)
    processes = [
        ProcessSpec(
            f"trainer-{rank}",
            "trainer",
            "rlctl.offline",
            {"run": tree},
            rank=rank,
            ranks=learner.ranks,
            group=LEARNERS,
            env=environment(learner.threads, [model for model in models.values() if model]),
            gpus=1 if gpu else 0,
            memory_mb=memory.DEEPSPEED_MB + (0 if gpu else need),
            gpu_memory_gb=gigabytes(need),
        )
        for rank in range(learner.ranks)
    ]
    notes = [
        f"the size of {model} ({name}) is not known: its memory was not checked"
        for name, model in models.items()
        if model and memory.model_size(model) is None
    ]
    return Plan(recipe.name, processes, notes)


def _frozen_mb(recipe: TrainingRecipe, models: Mapping[str, str]) -> int:
    """MiB of the model that is only looked at, while training goes on."""
    name = models.get("teacher", "")
    if isinstance(recipe, DPOConfig | KTOConfig) and not recipe.reference.precompute:
        name = models["reference.model"] or models["model"]
    return memory.weights_mb(memory.model_size(name), recipe.learner.dtype) if name else 0


def check_training(recipe: TrainingRecipe, plan: Plan, *, here: bool, gpus: int | None) -> None:
    """Raises one ConfigError that tells every fault found.

    `here`: the run is to start on this machine. `gpus`: those there are; None: trust `cluster`.
    """
    faults = [
        *model_faults(models_of(recipe)),
        *(fault for index, data in enumerate(recipe.data) for fault in data_faults(f"data.{index}", data)),
        *(data_faults("eval_data", recipe.eval_data) if recipe.eval_data is not None else ()),
        *library_faults(),
        *setting_faults(recipe),
        *(memory_faults(plan) if here or recipe.cluster.device != "gpu" else ()),
        *gpu_faults(recipe.cluster, plan, gpus),
    ]
    if faults:
        raise ConfigError("\n".join(faults))


def setting_faults(recipe: TrainingRecipe) -> Iterator[str]:
    """What does not go together, or needs what is not installed."""
    cluster, learner = recipe.cluster, recipe.learner
    if learner.ranks > recipe.batch_size:
        yield f"learner.ranks = {learner.ranks} is above batch_size = {recipe.batch_size}: lower it"
    if learner.lora is not None and learner.lora.quantize_4bit and importlib.util.find_spec("bitsandbytes") is None:
        yield "learner.lora.quantize_4bit needs bitsandbytes: pip install bitsandbytes, or set it to false"
    if recipe.log.wandb_project is not None and importlib.util.find_spec("wandb") is None:
        yield "log.wandb_project needs wandb: pip install 'rlctl[wandb]', or leave it out"
    if cluster.ray_address is not None and not cluster.ray_address.rpartition(":")[2].isdigit():
        yield f"cluster.ray_address: {cluster.ray_address!r} is no host:port"
    if cluster.nodes > 1 and cluster.ray_address is None:
        yield f"cluster.nodes = {cluster.nodes} needs a Ray cluster: set cluster.ray_address (--ray-address host:port)"
    if cluster.nodes > 1 and cluster.interface.startswith("127."):
        yield "several machines need cluster.interface, the beginning of their private addresses, such as '10.1.'"


def _set(tree: dict[str, Any], name: str, value: str) -> None:
    *sections, leaf = name.split(".")
    for section in sections:
        tree = tree[section]
    tree[leaf] = value
