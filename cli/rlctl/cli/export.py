"""`rlctl export RUN DIR`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlctl.cli.runs import RunsDir, run_folder


def export(
    run: Annotated[str, typer.Argument(help="Name of the run.")],
    output: Annotated[Path, typer.Argument(help="Folder to write; it must not exist.")],
    step: Annotated[
        int | None, typer.Option(min=1, help="Checkpoint of this step; none: the finished model, else the newest.")
    ] = None,
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """Write a run's policy in Hugging Face format."""
    from rich.console import Console

    from rlctl.launch.jobs import export_model

    export_model(run_folder(run, runs_dir), output, step, Console())
    typer.echo(f"{output}: load it with transformers, or `rlctl chat {output}`")
