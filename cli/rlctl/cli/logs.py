"""`rlctl logs RUN [PROCESS]`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from rlctl.cli.runs import RunsDir, refuse_chain, run_folder

POLL_S = 0.3


def logs(
    run: Annotated[str, typer.Argument(help="Name of the run.")],
    process: Annotated[str | None, typer.Argument(help="Process, for example trainer-0; none: all of them.")] = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Lines from the end of each log.")] = 20,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as the logs grow, until Ctrl-C.")] = False,
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """What the processes of a run wrote."""
    from rlctl.core.errors import NotFoundError

    whole = run_folder(run, runs_dir)
    refuse_chain(whole)
    folder = whole.path / "logs"
    found = {path.stem: path for path in sorted(folder.glob("*.log"))}
    if process is not None:
        if process not in found:
            raise NotFoundError(f"run {run!r} has no log of {process!r}; there are: {', '.join(found) or 'none yet'}")
        found = {process: found[process]}
    offsets = {name: _print_end(name, path, lines, label=len(found) > 1) for name, path in found.items()}
    while follow:
        time.sleep(POLL_S)
        for name, path in found.items():
            with path.open("rb") as log:
                log.seek(offsets[name])
                for line in log:
                    if not line.endswith(b"\n"):
                        break
                    offsets[name] += len(line)
                    _print(name, line, label=len(found) > 1)


def _print_end(name: str, path: Path, lines: int, *, label: bool) -> int:
    """Prints the last lines; where the next one begins."""
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    for line in whole.splitlines()[-lines:] if lines else []:
        _print(name, line, label=label)
    return len(whole)


def _print(name: str, line: bytes, *, label: bool) -> None:
    text = line.decode("utf-8", "replace").rstrip("\n")
    typer.echo(f"{name} | {text}" if label else text)
