"""`rlctl generate PROMPT`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlctl.cli.runs import Address, Ca, RunsDir, TokenFile, reach


def generate(
    prompt: Annotated[str, typer.Argument(help="Text, or with --chat what the user says; - reads standard input.")],
    run: Annotated[str | None, typer.Option(help="A run that is up.")] = None,
    address: Address = None,
    chat: Annotated[bool, typer.Option("--chat", help="Put the prompt through the model's chat template.")] = False,
    n: Annotated[int, typer.Option("-n", min=1, help="Samples.")] = 1,
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy.")] = 1.0,
    top_p: Annotated[float, typer.Option(min=0, max=1, help="Nucleus.")] = 1.0,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Longest response; default: what the context leaves.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the samples.")] = None,
    timeout_s: Annotated[float, typer.Option(min=0.1, help="Deadline of the call, seconds.")] = 120.0,
    runs_dir: RunsDir = Path("runs"),
    token_file: TokenFile = None,
    ca: Ca = None,
) -> None:
    """Sample from a generation service: that of a run, or one at an address."""
    import sys

    from rlctl.clients.blocking import GenerationClient
    from rlctl.v1.generation_pb2 import SamplingParams

    channel, registry = reach(run, address, runs_dir, token_file, ca)
    text = sys.stdin.read() if prompt == "-" else prompt
    sampling = SamplingParams(n=n, temperature=temperature, top_p=top_p, max_tokens=max_tokens, seed=seed)
    with GenerationClient(channel, registry) as client:
        for sample in client.generate_text([("user", text)] if chat else text, sampling, timeout_s=timeout_s):
            typer.echo(sample)
