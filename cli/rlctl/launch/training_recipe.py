"""Recipes of the offline trainers: a job's own settings, and the machines it runs on."""

from __future__ import annotations

from rlctl.launch.recipe import MachinesSection
from rlctl.offline.config import DPOConfig, Job, KDConfig, KTOConfig, PRMConfig, RMConfig, SFTConfig


class SFTRecipe(SFTConfig):
    """Supervised fine-tuning."""

    cluster: MachinesSection = MachinesSection()


class RMRecipe(RMConfig):
    """A reward model."""

    cluster: MachinesSection = MachinesSection()


class DPORecipe(DPOConfig):
    """Direct preference optimisation."""

    cluster: MachinesSection = MachinesSection()


class KTORecipe(KTOConfig):
    """Kahneman-Tversky optimisation."""

    cluster: MachinesSection = MachinesSection()


class KDRecipe(KDConfig):
    """Distillation."""

    cluster: MachinesSection = MachinesSection()


class PRMRecipe(PRMConfig):
    """A process reward model."""

    cluster: MachinesSection = MachinesSection()


TrainingRecipe = SFTRecipe | RMRecipe | DPORecipe | KTORecipe | KDRecipe | PRMRecipe

TRAINING_RECIPES: dict[Job, type[TrainingRecipe]] = {
    "sft": SFTRecipe,
    "rm": RMRecipe,
    "dpo": DPORecipe,
    "kto": KTORecipe,
    "kd": KDRecipe,
    "prm": PRMRecipe,
}


def models_of(recipe: TrainingRecipe) -> dict[str, str]:
    """Every model that a job reads, by the setting that names it."""
    named = {"model": recipe.model}
    if isinstance(recipe, KDConfig) and recipe.teacher:
        named["teacher"] = recipe.teacher
    if isinstance(recipe, DPOConfig | KTOConfig):
        named["reference.model"] = recipe.reference.model
    return named
