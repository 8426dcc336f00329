"""Which processes share GPUs."""

from __future__ import annotations

from dataclasses import replace

from rlctl.launch.recipe import Recipe
from rlctl.launch.spec import ProcessSpec

#: Services by `cluster.colocate`.
TOGETHER = {
    "none": (),
    "actor_ref": ("trainer", "reference"),
    "critic_reward": ("critic", "reward"),
    "all": ("trainer", "reference", "critic", "reward", "generation"),
}


def colocated(process: ProcessSpec, recipe: Recipe) -> ProcessSpec:
    """The process with the name of the GPUs that it shares with others, where it shares any."""
    together = TOGETHER[recipe.cluster.colocate]
    if not process.gpus or process.service not in together:
        return process
    index = int(process.name.rsplit("-", 1)[1])
    seats = recipe.actor.ranks if "trainer" in together else recipe.critic.learner.ranks
    width = recipe.generation.tensor_parallel if "generation" in together else 1
    if process.service == "generation":
        return replace(process, share=f"gpus-{index % max(seats // width, 1)}")
    seat = index % seats
    return replace(process, share=f"gpus-{seat // width}", share_offset=seat % width)
