"""`rlctl score PROMPT RESPONSE`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from rlctl.cli.runs import Address, Ca, RunsDir, TokenFile, reach


def score(
    prompt: Annotated[str, typer.Argument(help="What was asked.")],
    response: Annotated[str, typer.Argument(help="What was answered.")],
    label: Annotated[str, typer.Option(help="The right answer, where the reward needs one.")] = "",
    run: Annotated[str | None, typer.Option(help="A run that is up.")] = None,
    address: Address = None,
    timeout_s: Annotated[float, typer.Option(min=0.1, help="Deadline of the call, seconds.")] = 60.0,
    runs_dir: RunsDir = Path("runs"),
    token_file: TokenFile = None,
    ca: Ca = None,
) -> None:
    """Ask a reward service for the reward of a response; prints JSON."""
    from rlctl.clients.blocking import RewardClient
    from rlctl.core.errors import FailedPreconditionError

    channel, registry = reach(run, address, runs_dir, token_file, ca)
    with RewardClient(channel, registry) as client:
        result = client.score_text([prompt], [response], [label], timeout_s=timeout_s)[0]
    if result.HasField("error"):
        raise FailedPreconditionError(f"no reward: {result.error.message}", reason=result.error.reason)
    typer.echo(
        json.dumps({"reward": result.reward, "components": dict(result.components), "extra": dict(result.extra_logs)})
    )
