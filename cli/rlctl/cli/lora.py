"""`rlctl lora`: adapters."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def lora() -> None:
    """Adapters of LoRA and QLoRA."""


@app.command("merge")
def merge(
    adapter: Annotated[Path, typer.Argument(help="Folder of the adapter, as peft or rlctl writes it.")],
    output: Annotated[Path, typer.Argument(help="Folder to write; it must not exist.")],
    base: Annotated[
        str | None, typer.Option(help="Folder or hub name of the base; none: the one that the adapter names.")
    ] = None,
) -> None:
    """Write the base model with an adapter merged in; a reward model keeps its head `score`."""
    from rlctl.models.adapters import merge_adapter

    architecture = merge_adapter(adapter, output, base)
    typer.echo(f"{output}: {architecture}, loads with transformers and vLLM")
