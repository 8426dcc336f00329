"""What a person sees of a chain: the plan of its stages, and the report on the terminal and in report.md."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from rlctl.launch.chain_folder import ChainFolder
from rlctl.launch.chain_recipe import STAGES, ChainRecipe, Stage
from rlctl.launch.recipe import Recipe
from rlctl.launch.report import print_plan
from rlctl.launch.spec import Plan
from rlctl.launch.training_recipe import TrainingRecipe
from rlctl.launch.training_view import print_training_plan

CHART = "report.png"
POLICIES = {"base": "base", "sft": "SFT", "ppo": "PPO", "dpo": "DPO"}
#: Of a policy in the summary: its key, what it is called, and how it is written.
MEASURES = (
    ("accuracy", "right answers, greedy", "z.3f"),
    ("reward", "reward, greedy", "z.3f"),
    ("sampled_reward", "reward, sampled", "z.3f"),
    ("kl", "KL from SFT, nats a response", "z.3f"),
    ("length", "response length, tokens", "z.2f"),
    ("cut", "responses cut by length", "z.3f"),
    ("ranked", "right above wrong, by reward", "z.3f"),
)
_NOTES = (
    "`reward` is the trained reward model's, {scale}. `KL from SFT` is the mean of log π(y) − log π_SFT(y) over "
    "sampled responses. `right above wrong, by reward` is how often the reward model prefers the right one of two "
    "samples of the policy to the same prompt: where it is low, reward may rise while right answers fall. `training` "
    "does not count what services take to start."
)


def print_chain_plan(
    console: Console, recipe: ChainRecipe, stages: Mapping[Stage, TrainingRecipe | Recipe], plans: Mapping[Stage, Plan]
) -> None:
    """`stages` with models of the kind that will be made."""
    begins = {
        "sft": recipe.model,
        "rm": str(recipe.rm.get("model") or "the SFT model"),
        "ppo": "the SFT model, rewarded by the reward model",
        "dpo": "the SFT model, on the reward model's pairs",
    }
    for number, stage in enumerate(STAGES, 1):
        console.rule(f"stage {number} of {len(STAGES)}: {stage}, from {begins[stage]}", align="left")
        wanted = stages[stage]
        if isinstance(wanted, Recipe):
            print_plan(console, wanted, plans[stage], wanted.model)
        else:
            print_training_plan(console, wanted, plans[stage])
    console.rule("report", align="left")
    section = recipe.generation
    lines = {
        "prompts": "ppo.eval.data, answered by base, SFT, PPO and DPO: "
        f"greedily and with {recipe.samples} samples each",
        "services": f"generation ({section.replicas} x {section.engine}, {section.dtype}), reward and reference, one "
        "after the other",
        "chain folder": str(recipe.run_dir.resolve()),
    }
    for name, text in lines.items():
        console.print(f"{name:<17}{text}", markup=False, highlight=False, soft_wrap=True)


def cells(summary: Mapping[str, Any]) -> list[list[str]]:
    """The comparing table: a line a measure, a column a policy; a line that no policy has is left out."""
    policies = summary["policies"]
    lines = []
    for key, name, form in MEASURES:
        if any(one[key] is not None for one in policies):
            lines.append([name, *("-" if one[key] is None else f"{one[key]:{form}}" for one in policies)])
    stages = summary["stages"]
    seconds = [f"{stages[one['policy']]['seconds']:.0f}" if one["policy"] in stages else "-" for one in policies]
    return [*lines, ["training, s", *seconds]]


def reward_model(summary: Mapping[str, Any]) -> str:
    """How the reward model ranks held-out pairs, in words."""
    stage = summary["stages"]["rm"]
    text = f"{stage['steps']} steps in {stage['seconds']:.0f} s"
    evaluation = stage.get("eval")
    if evaluation:
        before, after = evaluation["before"]["accuracy"], evaluation["after"]["accuracy"]
        text = f"{before:.3f} -> {after:.3f} of {evaluation['n']} held-out pairs right, {text}"
    return text


def print_stages(console: Console, folder: ChainFolder) -> None:
    """How far a chain is."""
    for stage in STAGES:
        run = folder.stage(stage)
        told = run.summary()
        state = f"{told['steps']} of {told['total_steps']} steps in {told['seconds']:.0f} s" if told else "not begun"
        if folder.done(stage):
            state = f"done, {state}"
        elif run.is_up():
            state = f"up: rlctl status {run.path}"
        console.print(f"{stage:<8}{state}", markup=False, highlight=False, soft_wrap=True)


def print_chain(console: Console, summary: Mapping[str, Any], folder: Path) -> None:
    """What a chain came to."""
    table = Table(title=f"chain {summary['run']}", title_justify="left", title_style="bold")
    table.add_column(f"{summary['policies'][0]['prompts']} held-out prompts", style="bold")
    for one in summary["policies"]:
        table.add_column(POLICIES[one["policy"]], justify="right")
    for line in cells(summary):
        table.add_row(*line)
    console.print(table)
    lines = {
        "reward model": reward_model(summary),
        "whole chain": f"{summary['seconds']:.0f} s",
        "report": f"{folder}/report.md, {folder}/{CHART}",
        "talk to one": f"rlctl chat {folder}/ppo",
    }
    for name, text in lines.items():
        console.print(f"{name:<14}{text}", markup=False, highlight=False, soft_wrap=True)


def markdown(summary: Mapping[str, Any], normalized: bool) -> str:
    """report.md."""
    heads = [f"{summary['policies'][0]['prompts']} held-out prompts"]
    heads += [POLICIES[one["policy"]] for one in summary["policies"]]
    rows = ["| " + " | ".join(line) + " |" for line in (heads, *cells(summary))]
    rows.insert(1, "|---|" + "---:|" * len(summary["policies"]))
    scale = "in standard deviations from the mean of held-out pairs" if normalized else "as it comes"
    stages = [
        f"- {stage}: {told['steps']} steps in {told['seconds']:.0f} s, `{told['model']}`"
        for stage, told in summary["stages"].items()
    ]
    parts = [
        f"# Chain {summary['run']}, seed {summary['seed']}",
        "\n".join(rows),
        f"Reward model: {reward_model(summary)}. Whole chain: {summary['seconds']:.0f} s.",
        _NOTES.format(scale=scale),
        f"![Right answers, and reward by distance from SFT]({CHART})",
        "\n".join(stages),
    ]
    return "\n\n".join(parts) + "\n"
