"""What can be found wrong with the recipe of a chain before its first stage is started."""

from __future__ import annotations

from collections.abc import Iterator

from rlctl.core.errors import ConfigError
from rlctl.launch import memory
from rlctl.launch.chain_recipe import STAGES, ChainRecipe, Stage, Trained
from rlctl.launch.checks import check
from rlctl.launch.launcher import local_gpus, planned
from rlctl.launch.recipe import Recipe
from rlctl.launch.spec import Plan
from rlctl.launch.training_plan import check_training, plan_training
from rlctl.launch.training_recipe import models_of


def check_chain(recipe: ChainRecipe, *, here: bool, gpus: int | None) -> dict[Stage, Plan]:
    """The processes of each stage. Raises one ConfigError that tells every fault found in any of them.

    The models that stages will make are taken to be of the size of those they start from. `here`: the chain is to
    start on this machine. `gpus`: those of this machine; where it is None, or a stage joins a Ray cluster, the stage's
    `cluster` is trusted.
    """
    plans: dict[Stage, Plan] = {}
    faults = [*_lengths(recipe), *_report_gpus(recipe, gpus)]
    expected = stand_ins(recipe)
    for stage in STAGES:
        try:
            plans[stage] = _check_stage(recipe, stage, expected, here=here, gpus=gpus)
        except ConfigError as error:
            faults += [f"[{stage}] {line}" for line in error.message.splitlines()]
    if faults:
        raise ConfigError("\n".join(faults))
    return plans


def stand_ins(recipe: ChainRecipe) -> Trained:
    """Models of the kind that SFT and the reward model will be."""
    return Trained(recipe.model, str(recipe.rm.get("model") or recipe.model))


def _check_stage(recipe: ChainRecipe, stage: Stage, expected: Trained, *, here: bool, gpus: int | None) -> Plan:
    wanted = recipe.stages(expected)[stage]
    if wanted.cluster.ray_address is not None:
        gpus = None
    if isinstance(wanted, Recipe):
        plan = planned(wanted, wanted.model, wanted.nats_port or 4222)
        check(wanted, plan, here=here, ports=False, gpus=gpus)
        return plan
    device = wanted.cluster.device
    promised = wanted.cluster.gpus_per_node > 0 or local_gpus() > 0
    plan = plan_training(wanted, models_of(wanted), gpu=device == "gpu" or (device == "auto" and promised))
    check_training(wanted, plan, here=here, gpus=gpus)
    return plan


def _report_gpus(recipe: ChainRecipe, gpus: int | None) -> Iterator[str]:
    """The report's services run one after the other, on one machine."""
    section, cluster = recipe.generation, recipe.ppo_recipe(stand_ins(recipe)).cluster
    needed = section.replicas * section.tensor_parallel
    there = gpus if gpus is not None else cluster.gpus_per_node or local_gpus()
    if cluster.device != "cpu" and there and needed > there:
        yield (
            f"generation.replicas x generation.tensor_parallel = {needed} GPUs, and there are {there}: lower one of "
            "the two"
        )


def _lengths(recipe: ChainRecipe) -> Iterator[str]:
    ppo = recipe.ppo_recipe(stand_ins(recipe))
    assert ppo.eval.data is not None
    longest = ppo.eval.data.max_prompt_len + ppo.sampling.max_new_tokens
    context = recipe.generation.max_model_len or memory.max_positions(recipe.model)
    if context is not None and context < longest:
        yield (
            f"ppo.eval.data.max_prompt_len + ppo.sampling.max_new_tokens = {longest} tokens, but the report's "
            f"generation holds {context}: raise generation.max_model_len as far as the model allows, or lower one of "
            "the two"
        )
