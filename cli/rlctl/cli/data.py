"""`rlctl data preview RECIPE_OR_PATH [KEY=VALUE ...]`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rlctl.data.config import SourceConfig

#: What each trainer reads.
KINDS = {"ppo": "prompts", "sft": "supervised", "kd": "supervised", "rm": "preference", "dpo": "preference",
         "kto": "kto", "prm": "process"}  # fmt: skip

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.callback()
def data() -> None:
    """Look at data as the model will see it."""


@app.command()
def preview(
    what: Annotated[str, typer.Argument(metavar="RECIPE_OR_PATH", help="A recipe, or a data set by path or hub name.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Settings that win: of the recipe, or of the data set."),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option("--as", help="prompts, supervised, preference, kto, process, or a trainer's name (sft, rm, ...)."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Whose tokenizer; default: the recipe's model.")] = None,
    held_out: Annotated[bool, typer.Option("--eval", help="The held-out data of the recipe.")] = False,
    rows: Annotated[int, typer.Option("-n", min=0, help="Rows shown of each data set.")] = 3,
    first: Annotated[int, typer.Option("--from", min=0, help="The first row shown, of those that are kept.")] = 0,
) -> None:
    """Show rows as token by token they reach the model, coloured by what is trained, and what the filters took."""
    from rich.console import Console

    from rlctl.cli.preview import show
    from rlctl.core.errors import ConfigError
    from rlctl.data.load import load_data
    from rlctl.data.mix import mix

    apart: SourceConfig | None = None
    if _is_recipe(what):
        configs, apart, named = _of_recipe(what, settings or [], kind, held_out)
    elif held_out:
        raise ConfigError("--eval is for a recipe; name the data set's split as split=test")
    else:
        configs, named = [_of_path(what, settings or [], kind)], ""
    tokenizer = load_any_tokenizer(model or named)
    seen = load_data(apart, tokenizer) if apart is not None else None
    mixed = mix(configs, lambda config: load_data(config, tokenizer), seen, [apart] if apart is not None else [])
    console = Console()
    begin = 0
    for config, size, counts in zip(configs, mixed.sizes, mixed.counts, strict=True):
        show(console, config, mixed.items[begin : begin + size], counts, tokenizer, first, rows)
        begin += size


def load_any_tokenizer(model: str) -> Any:
    """The tokenizer of a folder, a hub name, or the small model that is built on the spot."""
    from rlctl.core.errors import ConfigError
    from rlctl.launch.prepare import ARITHMETIC, UNTRAINED

    if not model:
        raise ConfigError("whose tokens? Name a model with --model: a folder, a hub name, or " + ARITHMETIC)
    if model in (ARITHMETIC, UNTRAINED):
        from rlctl.models.arithmetic import build_tokenizer

        return build_tokenizer()
    from rlctl.models.load import load_tokenizer
    from rlctl.models.source import resolve

    return load_tokenizer(resolve(model))


def _is_recipe(what: str) -> bool:
    from rlctl.launch.recipe import recipe_names

    return Path(what).suffix == ".toml" or what in (*recipe_names(), *recipe_names("offline"))


def _of_path(path: str, settings: list[str], kind: str | None) -> SourceConfig:
    import json

    from rlctl.core.config import load
    from rlctl.core.errors import ConfigError
    from rlctl.data.load import CONFIGS

    chosen = KINDS.get(kind or "", kind)
    if chosen not in CONFIGS:
        raise ConfigError(
            f"{'--as ' + kind + ' is unknown' if kind else 'what is in it?'}: say --as {', '.join(CONFIGS)}"
        )
    return load(CONFIGS[chosen], None, [f"path={json.dumps(path)}", *settings])


def _of_recipe(
    name: str, settings: list[str], kind: str | None, held_out: bool
) -> tuple[list[SourceConfig], SourceConfig | None, str]:
    """The data sets of a recipe, the held-out one that they are kept apart from, and the model."""
    from rlctl.core.config import load, parse, set_override
    from rlctl.core.errors import ConfigError, NotFoundError
    from rlctl.launch.loop_recipe import LOOP_RECIPES
    from rlctl.launch.recipe import Recipe, find_recipe, recipe_names
    from rlctl.launch.training_recipe import TRAINING_RECIPES

    path = find_recipe(name, "offline" if name in recipe_names("offline") else "")
    tree = parse(path.read_text(encoding="utf-8"), path)
    for setting in settings:
        set_override(tree, setting)
    jobs = {"supervised": "sft", "preference": "dpo", "process": "prm", "prompts": "ppo"}
    job = tree.get("job") or (jobs.get(kind, kind) if kind else None)
    if job == "chain":
        raise ConfigError(f"{path} is a chain of trainers: look at the recipe of one of its stages instead")
    if job is None and isinstance(tree.get("data"), list):
        raise ConfigError(f"{path} does not say which trainer it is for: say --as {', '.join(TRAINING_RECIPES)}")
    train: list[SourceConfig]
    if job in TRAINING_RECIPES:
        offline: Any = load(TRAINING_RECIPES[job], path, settings)
        train, apart, model = offline.data, offline.eval_data, offline.model
    elif job in LOOP_RECIPES:
        loop: Any = load(LOOP_RECIPES[job], path, settings)
        train, model = [_prompts(loop.prompts)], loop.model
        apart = _prompts(loop.eval_prompts) if loop.eval_prompts is not None else None
    else:
        recipe = load(Recipe, path, settings)
        train, apart, model = [recipe.data], recipe.eval.data, recipe.model
    if not held_out:
        return train, apart, model
    if apart is None:
        raise NotFoundError(f"{path} has no held-out data")
    return [apart], None, model


def _prompts(config: SourceConfig) -> SourceConfig:
    """The prompts of a loop, as those of a run are."""
    from rlctl.data.config import PromptDataConfig

    return PromptDataConfig.model_validate(config.model_dump(exclude_unset=True))
