"""summary.json of a chain: what its stages and its report came to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rlctl.launch.chain_folder import MODEL, ChainFolder
from rlctl.launch.chain_recipe import STAGES, ChainRecipe, Stage

if TYPE_CHECKING:
    from rlctl.launch.chain_numbers import Measured


def chain_summary(
    recipe: ChainRecipe, folder: ChainFolder, measures: Sequence[Measured] | None, seconds: float
) -> dict[str, Any]:
    """As JSON. Without `measures` the chain is not done; it counts its report as the last of its steps."""
    stages = {stage: _stage(folder, stage) for stage in STAGES if folder.done(stage)}
    summary: dict[str, Any] = {
        "job": "chain", "run": recipe.name, "status": "stopped" if measures is None else "done",
        "steps": len(stages) + (measures is not None), "total_steps": len(STAGES) + 1, "seconds": round(seconds, 3),
        "seed": recipe.seed, "stages": stages,
    }  # fmt: skip
    if measures is not None:
        summary["policies"] = [asdict(one) for one in measures]
    return summary


def _stage(folder: ChainFolder, stage: Stage) -> dict[str, Any]:
    told = folder.stage(stage).summary()
    kept = {name: told[name] for name in ("steps", "seconds", "eval") if name in told}
    return kept | {"model": str(folder.path / stage / MODEL)}
