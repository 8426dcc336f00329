"""`rlctl chat RUN | MODEL`."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlctl.cli.runs import Address, Ca, RunsDir, TokenFile, model_of, reach

if TYPE_CHECKING:
    from rlctl.bus.config import BusConfig
    from rlctl.clients.blocking import GenerationClient
    from rlctl.rpc.config import ChannelConfig


def chat(
    target: Annotated[str | None, typer.Argument(help="A run (up, or done), a model's folder, or a hub name.")] = None,
    address: Address = None,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    plain: Annotated[bool, typer.Option("--plain", help="No chat template: each line is a prompt of its own.")] = False,
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy.")] = 0.0,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest response.")] = None,
    timeout_s: Annotated[float, typer.Option(min=0.1, help="Longest wait for a response, seconds.")] = 300.0,
    runs_dir: RunsDir = Path("runs"),
    token_file: TokenFile = None,
    ca: Ca = None,
) -> None:
    """Talk to a model: a run's, a trained one, or one at an address. An empty line or Ctrl-D ends it."""
    from rlctl.clients.blocking import GenerationClient
    from rlctl.launch.serving import has_chat_template, serve_model

    with ExitStack() as stack:
        channel: ChannelConfig
        registry: BusConfig | None
        model = None if address is not None else model_of(target, runs_dir)
        if model is None:
            channel, registry = reach(target, address, runs_dir, token_file, ca)
        else:
            typer.echo(f"loading {model} ...", err=True)
            channel, registry = stack.enter_context(serve_model(model)).channel, None
            plain = plain or not has_chat_template(model)
        client = stack.enter_context(GenerationClient(channel, registry))
        _talk(client, system, plain, temperature, max_tokens, timeout_s)


def _talk(
    client: GenerationClient,
    system: str | None,
    plain: bool,
    temperature: float,
    max_tokens: int | None,
    timeout_s: float,
) -> None:
    from rlctl.v1.generation_pb2 import SamplingParams

    sampling = SamplingParams(temperature=temperature, max_tokens=max_tokens)
    turns: list[tuple[str, str]] = [("system", system)] if system else []
    while True:
        try:
            said = input("> ").strip()
        except EOFError:
            return
        if not said:
            return
        turns.append(("user", said))
        answer = ""
        for piece in client.stream_text(said if plain else turns, sampling, timeout_s=timeout_s):
            answer += piece
            typer.echo(piece, nl=False)
        typer.echo()
        turns.append(("assistant", answer))
