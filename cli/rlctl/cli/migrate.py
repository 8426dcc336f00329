"""`rlctl migrate -- OPENRLHF_COMMAND_LINE`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def migrate(
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="-- COMMAND FLAGS...", help="An OpenRLHF command line: python -m openrlhf.cli.train_ppo_ray ..."
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the recipe to this file; default: standard output.")
    ] = None,
) -> None:
    """Turn an OpenRLHF command line into a recipe, and name each flag that could not be carried over."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from rlctl.core.errors import ConfigError
    from rlctl.migrate.migrate import as_toml
    from rlctl.migrate.migrate import migrate as read

    draft = read(command)
    if output is None:
        typer.echo(as_toml(draft), nl=False)
    elif output.exists():
        raise ConfigError(f"{output} is there already: name another file, or take it away")
    else:
        output.write_text(as_toml(draft), encoding="utf-8")
    console = Console(stderr=True)
    if draft.left:
        table = Table(
            "not carried over",
            "why",
            title=f"{len(draft.left)} flag{'s' if len(draft.left) != 1 else ''}",
            title_justify="left",
        )
        for left in draft.left:
            table.add_row(Text(left.flag), Text(left.reason))
        console.print(table)
    for note in draft.notes:
        console.print(Text(f"note: {note}"))
    if output is not None:
        job = draft.get("job", "ppo")
        console.print(Text(f"{output} is written: rlctl launch {job} {output} --dry-run"))
