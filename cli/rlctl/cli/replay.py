"""`rlctl replay RUN`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlctl.cli.runs import RunsDir, run_folder


def replay(
    run: Annotated[str, typer.Argument(help='Name of a run whose journal is whole (journal.keep = "all").')],
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """Train a run again from its journal alone: no token is generated, and on a CPU the same weights come out."""
    from rich.console import Console

    from rlctl.launch.jobs import replay_run

    folder = run_folder(run, runs_dir)
    replay_run(folder, Console())
    typer.echo(f"{folder.path / 'replay' / 'model'}: the replayed model; its metrics lie beside it")
