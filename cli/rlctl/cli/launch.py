"""`rlctl launch ppo [RECIPE] [key=value ...]`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rlctl.launch.recipe import Recipe

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)


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
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything and print the plan; start nothing.")
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start anew; an earlier run of this name is kept beside.")
    ] = False,
    ray_address: Annotated[str | None, typer.Option(help="Join this Ray cluster (host:port).")] = None,
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
    from rlctl.core.errors import ConfigError
    from rlctl.launch.recipe import DEFAULT_RECIPE, Recipe, find_recipe

    names = [argument for argument in arguments if "=" not in argument or Path(argument).is_file()]
    if len(names) > 1:
        raise ConfigError(f"give one recipe, not {' and '.join(names)}; settings are written key=value")
    path = find_recipe(names[0] if names else DEFAULT_RECIPE)
    return load(Recipe, path, [argument for argument in arguments if argument not in names])
