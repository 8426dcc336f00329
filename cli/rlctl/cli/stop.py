"""`rlctl stop RUN`."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path
from typing import Annotated

import typer

from rlctl.cli.launch import CHAIN, LOOPS
from rlctl.cli.runs import RunsDir, run_folder

POLL_S = 0.2


def stop(
    run: Annotated[str, typer.Argument(help="Name of the run.")],
    now: Annotated[
        bool, typer.Option("--now", help="Do not wait for the step in hand: its rollouts are used later.")
    ] = False,
    timeout_s: Annotated[float, typer.Option(min=1, help="How long to wait for the end, seconds.")] = 180.0,
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """End a run in order, as Ctrl-C does: finish the step, commit, stop every process."""
    from rlctl.core.errors import DeadlineError, FailedPreconditionError

    folder = run_folder(run, runs_dir)
    launch = folder.launch()
    if launch is None or not folder.is_up():
        raise FailedPreconditionError(f"run {run!r} is not up")
    if launch.host != socket.gethostname():
        raise FailedPreconditionError(f"run {run!r} was launched on {launch.host}: stop it there")
    for _ in range(2 if now else 1):
        os.kill(launch.pid, signal.SIGTERM)
        time.sleep(1.0 if now else 0.0)
    deadline = time.monotonic() + timeout_s
    while folder.is_up():
        if time.monotonic() > deadline:
            raise DeadlineError(
                f"run {run!r} was not over {timeout_s:.0f} s after it was asked; `rlctl stop {run} --now`"
            )
        time.sleep(POLL_S)
    step = folder.checkpoint_step()
    where = "the beginning" if step is None else f"step {step}"
    if folder.job in (CHAIN, *LOOPS):
        where = "where it stood"
    typer.echo(f"stopped; `rlctl launch` with the same settings goes on from {where}")
