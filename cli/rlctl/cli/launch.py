"""`rlctl launch ppo|sft|rm|dpo|kto|kd|prm|iterative-dpo|rejection-sampling|chain [RECIPE] [key=value ...]`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rlctl.launch.chain_recipe import ChainRecipe
    from rlctl.launch.loop_recipe import Loop
    from rlctl.launch.recipe import Recipe
    from rlctl.launch.training_recipe import TrainingRecipe

#: What the commands without services train; each has a recipe of its own name, which runs on a CPU in minutes.
TRAININGS = {
    "sft": "Supervised fine-tuning on prompts with responses, chats or plain text.",
    "rm": "A reward model from pairs of a better and a worse response.",
    "dpo": "Direct preference optimisation (cDPO, IPO) on pairs.",
    "kto": "Kahneman-Tversky optimisation on responses judged one by one.",
    "kd": "Distillation of a teacher into a smaller model.",
    "prm": "A process reward model, which judges each step of reasoning.",
}

#: Loops around them: generate, score, choose, train; each with a recipe of its own name too.
LOOPS = {
    "iterative-dpo": "Generate, score, pair the best with the worst, DPO: round after round.",
    "rejection-sampling": "Generate, score, fine-tune on the best (or on all, conditioned on their reward).",
}

#: All of it in turn, with a recipe of its own name too.
CHAIN = "chain"

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)


DryRun = Annotated[bool, typer.Option("--dry-run", help="Check everything and print the plan; start nothing.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Start anew; an earlier run of this name is kept beside.")]
RayAddress = Annotated[str | None, typer.Option(help="Join this Ray cluster (host:port).")]


@app.callback()
def jobs() -> None:
    """Train: validate a recipe, start every service, watch, end in order."""


@app.command()
def ppo(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RECIPE] [KEY=VALUE]...",
            help="A recipe's name or file (quickstart where none is given), then settings that win over it.",
        ),
    ] = None,
    dry_run: DryRun = False,
    fresh: Fresh = False,
    ray_address: RayAddress = None,
    nats_url: Annotated[str | None, typer.Option(help="Use this NATS server instead of one of the run's own.")] = None,
) -> None:
    """PPO and its family (GRPO, RLOO, REINFORCE++, ...): a run that exists is gone on with."""
    from rich.console import Console

    from rlctl.launch import launcher

    options = []
    if ray_address is not None:
        options.append(f"cluster.ray_address={ray_address}")
    if nats_url is not None:
        options.append(f"nats_url={nats_url}")
    recipe = read_recipe([*(arguments or []), *options])
    console = Console()
    if dry_run:
        launcher.dry_run(recipe, console)
        return
    raise typer.Exit(launcher.launch(recipe, console, fresh=fresh))


def read_recipe(arguments: list[str]) -> Recipe:
    """The recipe of `[RECIPE] [key=value ...]`. Raises ConfigError and NotFoundError."""
    from rlctl.core.config import load
    from rlctl.launch.recipe import DEFAULT_RECIPE, Recipe, find_recipe

    name, settings = _split(arguments)
    return load(Recipe, find_recipe(name or DEFAULT_RECIPE), settings)


def read_training_recipe(job: str, arguments: list[str]) -> TrainingRecipe:
    """The same of an offline trainer; its own recipe where none is named. Raises ConfigError and NotFoundError."""
    from rlctl.core.config import load
    from rlctl.launch.recipe import find_recipe
    from rlctl.launch.training_recipe import TRAINING_RECIPES

    name, settings = _split(arguments)
    return load(TRAINING_RECIPES[job], find_recipe(name or job, "offline"), settings)  # type: ignore[index]


def read_loop_recipe(job: str, arguments: list[str]) -> Loop:
    """The same of a loop. Raises ConfigError and NotFoundError."""
    from rlctl.core.config import load
    from rlctl.launch.loop_recipe import LOOP_RECIPES
    from rlctl.launch.recipe import find_recipe

    name, settings = _split(arguments)
    return load(LOOP_RECIPES[job], find_recipe(name or job, "offline"), settings)


def read_chain_recipe(arguments: list[str]) -> ChainRecipe:
    """The same of a chain. Raises ConfigError and NotFoundError."""
    from rlctl.launch.chain_recipe import read_chain
    from rlctl.launch.recipe import find_recipe

    name, settings = _split(arguments)
    return read_chain(find_recipe(name or CHAIN, "offline"), settings)


def _split(arguments: list[str]) -> tuple[str, list[str]]:
    """The recipe's name (or nothing) and the settings."""
    from rlctl.core.errors import ConfigError

    names = [argument for argument in arguments if "=" not in argument or os.path.isfile(argument)]
    if len(names) > 1:
        raise ConfigError(f"give one recipe, not {' and '.join(names)}; settings are written key=value")
    return names[0] if names else "", [argument for argument in arguments if argument not in names]


Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RECIPE] [KEY=VALUE]...",
        help="A recipe's name or file (the command's own where none is given), then settings that win over it.",
    ),
]


def _training(job: str) -> Callable[..., None]:
    def command(
        arguments: Arguments = None,
        dry_run: DryRun = False,
        fresh: Fresh = False,
        ray_address: RayAddress = None,
    ) -> None:
        from rich.console import Console

        from rlctl.launch import training

        options = [f"cluster.ray_address={ray_address}"] if ray_address is not None else []
        recipe = read_training_recipe(job, [*(arguments or []), *options])
        if dry_run:
            training.dry_run_training(recipe, Console())
            return
        raise typer.Exit(training.launch_training(recipe, Console(), fresh=fresh))

    return command


for _job, _help in TRAININGS.items():
    app.command(_job, help=_help)(_training(_job))


def _loop(job: str) -> Callable[..., None]:
    def command(arguments: Arguments = None, dry_run: DryRun = False, fresh: Fresh = False) -> None:
        from rich.console import Console

        from rlctl.launch import loop

        recipe = read_loop_recipe(job, arguments or [])
        if dry_run:
            loop.dry_run_loop(recipe, Console())
            return
        raise typer.Exit(loop.launch_loop(recipe, Console(), fresh=fresh))

    return command


for _job, _help in LOOPS.items():
    app.command(_job, help=_help)(_loop(_job))


@app.command(CHAIN)
def chain(arguments: Arguments = None, dry_run: DryRun = False, fresh: Fresh = False) -> None:
    """SFT, a reward model, PPO against it, DPO on its pairs, and a report that compares them."""
    from rich.console import Console

    from rlctl.launch import chain as launcher

    recipe = read_chain_recipe(arguments or [])
    if dry_run:
        launcher.dry_run_chain(recipe, Console())
        return
    raise typer.Exit(launcher.launch_chain(recipe, Console(), fresh=fresh))
