"""What can be found wrong with the recipe of a loop before anything is started."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

from rlctl.core.errors import ConfigError
from rlctl.launch import memory
from rlctl.launch.launcher import local_gpus
from rlctl.launch.loop_recipe import Loop
from rlctl.launch.machine_checks import gpu_faults, library_faults, memory_faults
from rlctl.launch.source_checks import data_faults, missing_files, model_faults
from rlctl.launch.spec import Plan
from rlctl.launch.training_plan import plan_training, setting_faults
from rlctl.launch.training_recipe import models_of


def check_loop(recipe: Loop, *, here: bool, gpus: int | None) -> Plan:
    """The processes of a round's training. Raises one ConfigError that tells every fault found.

    `here`: the run is to start on this machine. `gpus`: those there are; None: trust `cluster`.
    """
    training = recipe.training(1, recipe.model, recipe.model, recipe.run_dir, recipe.run_dir / "chosen.jsonl")
    device = recipe.cluster.device
    promised = recipe.cluster.gpus_per_node > 0 or local_gpus() > 0
    plan = plan_training(training, models_of(training), gpu=device == "gpu" or (device == "auto" and promised))
    models = {"model": recipe.model}
    models |= {f"reward.scorers.{index}.model": scorer.model for index, scorer in enumerate(recipe.reward.scorers)}
    faults = [
        *model_faults(models),
        *data_faults("prompts", recipe.prompts),
        *(data_faults("eval_prompts", recipe.eval_prompts) if recipe.eval_prompts is not None else ()),
        *missing_files({f"reward.scorers.{i}.path": scorer.path for i, scorer in enumerate(recipe.reward.scorers)}),
        *library_faults(),
        *setting_faults(training),
        *_generation_gpus(recipe, plan, gpus),
        *_generation(recipe),
        *(memory_faults(plan) if here or device != "gpu" else ()),
        *gpu_faults(recipe.cluster, plan, gpus),
    ]
    if faults:
        raise ConfigError("\n".join(faults))
    return plan


def _generation_gpus(recipe: Loop, plan: Plan, gpus: int | None) -> Iterator[str]:
    """Of one machine, and free while no training runs."""
    section = recipe.generation
    needed = section.replicas * section.tensor_parallel
    there = gpus if gpus is not None else recipe.cluster.gpus_per_node or local_gpus()
    if plan.processes[0].gpus and needed > there:
        yield (
            f"generation.replicas x generation.tensor_parallel = {needed} GPUs, and there are {there}: lower one of "
            "the two"
        )


def _generation(recipe: Loop) -> Iterator[str]:
    section = recipe.generation
    if section.engine == "vllm" and importlib.util.find_spec("vllm") is None:
        yield (
            "generation.engine = 'vllm', but vLLM is not installed: install rlctl[cpu] or rlctl[gpu], or choose "
            "'transformers'"
        )
    longest = recipe.prompts.max_prompt_len + recipe.sampling.max_new_tokens
    context = section.max_model_len or memory.max_positions(recipe.model)
    if context is not None and context < longest:
        yield (
            f"prompts.max_prompt_len + sampling.max_new_tokens = {longest} tokens, but generation holds {context}: "
            "raise generation.max_model_len as far as the model allows, or lower one of the two"
        )
