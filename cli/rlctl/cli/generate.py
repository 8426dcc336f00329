"""`rlctl generate PROMPT`, and `rlctl generate --input FILE --output FILE`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlctl.cli.runs import Address, Ca, RunsDir, TokenFile, model_of, reach, run_folder

if TYPE_CHECKING:
    from rlctl.launch.batch_inference import Served
    from rlctl.v1.generation_pb2 import SamplingParams

Input = Annotated[
    str | None, typer.Option("--input", help="Prompts: a json, jsonl, csv or parquet file, a folder, or a hub name.")
]
Output = Annotated[
    Path | None, typer.Option("--output", help="jsonl file to write; one that was begun is gone on with.")
]


def generate(
    prompt: Annotated[
        str | None, typer.Argument(help="Text, or with --chat what the user says; - reads standard input.")
    ] = None,
    run: Annotated[str | None, typer.Option(help="A run: its service while it is up, else its model.")] = None,
    address: Address = None,
    model: Annotated[
        str | None, typer.Option(help="A model's folder or hub name, served for the length of the command.")
    ] = None,
    input_: Input = None,
    output: Output = None,
    split: Annotated[str, typer.Option(help="Split of the input.")] = "train",
    input_key: Annotated[str, typer.Option(help="Column with the prompt: text, or chat messages.")] = "prompt",
    output_key: Annotated[str, typer.Option(help="Column to write the response to.")] = "output",
    input_template: Annotated[str | None, typer.Option(help="Text with one {} where the prompt goes.")] = None,
    max_samples: Annotated[int | None, typer.Option(min=1, help="Prompts at most.")] = None,
    target_score: Annotated[
        float | None, typer.Option(help="Score to ask a model of conditional SFT for, written behind the prompt.")
    ] = None,
    at_once: Annotated[int, typer.Option(min=1, help="Prompts of the input in work at the same time.")] = 64,
    chat: Annotated[bool, typer.Option("--chat", help="Put the prompt through the model's chat template.")] = False,
    system: Annotated[str | None, typer.Option(help="System message (with --chat).")] = None,
    n: Annotated[int, typer.Option("-n", min=1, help="Samples.")] = 1,
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy.")] = 1.0,
    top_p: Annotated[float, typer.Option(min=0, max=1, help="Nucleus.")] = 1.0,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Longest response; default: what the context leaves.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the samples.")] = None,
    timeout_s: Annotated[float, typer.Option(min=0.1, help="Deadline of a call, seconds.")] = 120.0,
    runs_dir: RunsDir = Path("runs"),
    token_file: TokenFile = None,
    ca: Ca = None,
) -> None:
    """Sample from a generation service: that of a run, one at an address, or one started for a model.

    With --input and --output every prompt of a file is answered into another. It may be killed at any time: the same
    command asks only for what is not written yet.
    """
    from rlctl.core.errors import InvalidArgumentError
    from rlctl.v1.generation_pb2 import SamplingParams

    if sum(given is not None for given in (run, address, model)) > 1:
        raise InvalidArgumentError("give one of --run, --address and --model")
    if (prompt is None) == (input_ is None) or (input_ is None) != (output is None):
        raise InvalidArgumentError("give a prompt, or --input and --output")
    if system is not None and not chat:
        raise InvalidArgumentError("--system needs --chat")

    def serve(stack: ExitStack) -> Served:
        return _served(stack, run, address, model, runs_dir, token_file, ca, timeout_s)

    sampling = SamplingParams(n=n, temperature=temperature, top_p=top_p, max_tokens=max_tokens, seed=seed)
    if prompt is not None:
        _one(prompt, serve, sampling, chat, system, target_score)
        return
    from rlctl.core.config import validate
    from rlctl.data.config import DataConfig
    from rlctl.launch.batch_inference import BatchJob, generate_file

    assert output is not None
    data = validate(
        DataConfig,
        {
            "path": input_, "split": split, "input_key": input_key, "label_key": "", "input_template": input_template,
            "apply_chat_template": chat, "system_prompt": system, "max_samples": max_samples,
        },
    )  # fmt: skip
    job = BatchJob(data, output, output_key, sampling, model or run or "", target_score, at_once)
    try:
        end = generate_file(job, serve, lambda line: typer.echo(line, err=True))
    except KeyboardInterrupt:
        typer.echo(f"interrupted; every answer so far is in {output}. Give the same command to go on.", err=True)
        raise typer.Exit(130) from None
    refused = f"; {end.refused} were refused, see their `error`" if end.refused else ""
    typer.echo(f"{output}: {end.prompts} prompts, {end.asked} of them asked now{refused}")


def _served(
    stack: ExitStack,
    run: str | None,
    address: str | None,
    model: str | None,
    runs_dir: Path,
    token_file: Path | None,
    ca: Path | None,
    timeout_s: float,
) -> Served:
    from rlctl.launch.batch_inference import Served
    from rlctl.launch.serving import serve_model

    if run is not None:
        run_folder(run, runs_dir)
    target = model or run
    folder = model_of(target, runs_dir) if target is not None else None
    if folder is None:
        channel, registry = reach(run, address, runs_dir, token_file, ca)
        return Served(channel.model_copy(update={"timeout_s": timeout_s}), registry)
    typer.echo(f"loading {folder} ...", err=True)
    own = stack.enter_context(serve_model(folder))
    return Served(own.channel.model_copy(update={"timeout_s": timeout_s}), None, own)


def _one(
    prompt: str,
    serve: Callable[[ExitStack], Served],
    sampling: SamplingParams,
    chat: bool,
    system: str | None,
    target_score: float | None,
) -> None:
    import sys

    from rlctl.clients.blocking import GenerationClient
    from rlctl.data.condition import score_text

    text = sys.stdin.read() if prompt == "-" else prompt
    text += score_text(target_score) if target_score is not None else ""
    turns = [*([("system", system)] if system else []), ("user", text)]
    with ExitStack() as stack:
        served = serve(stack)
        client = stack.enter_context(GenerationClient(served.channel, served.registry))
        for sample in client.generate_text(turns if chat else text, sampling, timeout_s=served.channel.timeout_s):
            typer.echo(sample)
