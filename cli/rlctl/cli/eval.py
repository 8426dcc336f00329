"""`rlctl eval`: judge what a model wrote."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rlctl.evaluator.asking import Progress
    from rlctl.evaluator.config import EvaluatorConfig


def evaluate(
    outputs: Annotated[Path | None, typer.Option(help="Folder with .jsonl files of prompt and output.")] = None,
    gold: Annotated[
        str | None, typer.Option(help="Gold answers: a file, a hub data set, or task:NAME (reasoning-gym).")
    ] = None,
    gold_split: Annotated[str | None, typer.Option(help="Only gold rows of this split.")] = None,
    mode: Annotated[str | None, typer.Option(help="pair (two problems a prompt) or single.")] = None,
    max_samples: Annotated[int | None, typer.Option(min=1, help="Most records of each data set.")] = None,
    judge: Annotated[
        list[str] | None, typer.Option(help="deepseek, openai, local or rules; repeat it for a majority.")
    ] = None,
    judge_model: Annotated[list[str] | None, typer.Option(help="Model of the judge; one for each --judge.")] = None,
    base_url: Annotated[list[str] | None, typer.Option(help="Address of its API; one for each --judge.")] = None,
    price: Annotated[
        list[str] | None, typer.Option(help="HIT,MISS,OUTPUT: dollars per million tokens; one for each --judge.")
    ] = None,
    prompt_template: Annotated[Path | None, typer.Option(help="TOML with a judging prompt of your own.")] = None,
    swap_check: Annotated[bool | None, typer.Option("--swap-check", help="Ask again with A and B swapped.")] = None,
    concurrency: Annotated[int | None, typer.Option(min=1, help="Calls in flight at once.")] = None,
    max_cost: Annotated[float | None, typer.Option(min=0, help="Stop before this many dollars are passed.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Tell calls and cost; make none.")] = False,
    model: Annotated[str | None, typer.Option(help="Generate the outputs first, with this model.")] = None,
    address: Annotated[list[str] | None, typer.Option(help="host:port of an evaluator service to use.")] = None,
    generation_address: Annotated[
        list[str] | None, typer.Option(help="host:port of generation replicas that serve --model.")
    ] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Outputs a prompt, with --model.")] = None,
    output: Annotated[Path | None, typer.Option(help="Folder of report and journal.")] = None,
    language: Annotated[str | None, typer.Option(help="zh or en.")] = None,
    chart: Annotated[str | None, typer.Option(help="Measures to draw, separated by commas.")] = None,
    config: Annotated[Path | None, typer.Option(help="Settings as TOML or JSON; options win.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="Any other setting, name=value.")] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Bundled outputs and a stand-in judge: needs nothing.")] = False,
) -> None:
    """Judge what a fine-tuned model wrote: terminal tables, chart, workbook, JSON."""
    from rlctl.core.config import load
    from rlctl.core.errors import ConfigError
    from rlctl.evaluator.config import EvaluatorConfig

    values: dict[str, Any] = {
        "outputs": outputs, "gold": gold, "gold_split": gold_split, "mode": mode, "max_samples": max_samples,
        "prompt_template": prompt_template, "swap_check": swap_check, "concurrency": concurrency,
        "max_cost": max_cost, "generate.model": model, "generate.samples": samples, "output_dir": output,
        "language": language, "dry_run": dry_run or None,
    }  # fmt: skip
    overrides = [f"{name}={_toml(value)}" for name, value in values.items() if value is not None]
    if generation_address:
        overrides.append(f"generate.addresses={_toml(generation_address)}")
    if chart is not None:
        overrides.append(f"chart={_toml([name.strip() for name in chart.split(',')])}")
    if judge or judge_model or base_url or price:
        overrides.append(f"judges={_judges(judge or ['deepseek'], judge_model or [], base_url or [], price or [])}")
    settled = load(EvaluatorConfig, config, [*overrides, *(settings or [])])
    if demo and (address or settled.generate.model):
        raise ConfigError("--demo runs by itself: leave out --address and --model")
    if settled.dry_run:
        _tell_estimate(settled, demo=demo)
        return
    summary = _remote(settled, address) if address else _local(settled, demo=demo)
    if summary["state"] != "done":
        raise typer.Exit(1)


def _toml(value: Any) -> str:
    import json

    text = json.dumps(str(value) if isinstance(value, Path) else value, ensure_ascii=False)
    # The one control character that JSON leaves as it is and TOML forbids.
    return text.replace("\x7f", "\\u007f")


def _judges(judges: list[str], models: list[str], urls: list[str], prices: list[str]) -> str:
    """The list of judges as a TOML value; the n-th model, address and price belong to the n-th judge."""
    from rlctl.core.errors import ConfigError

    for name, given in (("--judge-model", models), ("--base-url", urls), ("--price", prices)):
        if len(given) > len(judges):
            raise ConfigError(f"{len(given)} {name} for {len(judges)} --judge: give one for each, in the same order")
    tables = []
    for index, preset in enumerate(judges):
        entries = {"preset": preset}
        if judges.count(preset) > 1:
            entries["name"] = f"{preset}-{judges[: index + 1].count(preset)}"
        if index < len(models):
            entries["model"] = models[index]
        if index < len(urls):
            entries["base_url"] = urls[index]
        parts = [f"{key} = {_toml(value)}" for key, value in entries.items()]
        if index < len(prices):
            parts.append(f"price = {_price(prices[index])}")
        tables.append("{" + ", ".join(parts) + "}")
    return "[" + ", ".join(tables) + "]"


def _price(text: str) -> str:
    from rlctl.core.errors import ConfigError

    try:
        hit, miss, output = (float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"--price {text!r}: write HIT,MISS,OUTPUT, for example 0.006,0.3,1.2") from None
    return f"{{input_hit = {hit}, input_miss = {miss}, output = {output}}}"


def _tell_estimate(config: EvaluatorConfig, *, demo: bool) -> None:
    from rlctl.evaluator.demonstration import demo_config
    from rlctl.evaluator.job import estimate_job
    from rlctl.evaluator.prices import PRICES_DATE

    told = estimate_job(demo_config(config, "") if demo else config)
    cost = "unknown (no price for this model)" if told.dollars is None else f"at most ${told.dollars:.4f}"
    typer.echo(
        f"{told.records} records, {told.calls} calls, at most {told.input_tokens:,} tokens in and "
        f"{told.most_output_tokens:,} out; cost {cost}, prices of {PRICES_DATE}. Nothing was asked."
    )


def _local(config: EvaluatorConfig, *, demo: bool) -> dict[str, Any]:
    """Runs in this process, until done, stopped, or interrupted."""
    import asyncio

    from rlctl.evaluator.demonstration import demonstrate
    from rlctl.evaluator.job import run_job
    from rlctl.evaluator.terminal import plain, show

    console = _console()
    with _bar(console) as on_progress:
        job = (
            demonstrate(config, lambda settled: run_job(settled, on_progress)) if demo else run_job(config, on_progress)
        )
        try:
            summary = asyncio.run(job)
        except KeyboardInterrupt:
            typer.echo(
                f"interrupted; every verdict so far is kept in {config.output_dir}. Give the same command to go on.",
                err=True,
            )
            raise typer.Exit(130) from None
    show(console, summary, config.language)
    console.print(f"report: {plain(str(config.output_dir.resolve()))}", markup=False, soft_wrap=True)
    return summary


def _remote(config: EvaluatorConfig, addresses: list[str]) -> dict[str, Any]:
    """Runs in an evaluator service, whose paths and keys count; an interrupt cancels it there."""
    import hashlib
    import json

    from rlctl.clients.blocking import EvaluatorClient
    from rlctl.core.errors import FailedPreconditionError
    from rlctl.evaluator.asking import Progress
    from rlctl.evaluator.terminal import show
    from rlctl.rpc.config import ChannelConfig
    from rlctl.v1 import evaluator_pb2 as pb

    text = config.model_dump_json(exclude_unset=True)
    console = _console()
    with EvaluatorClient(ChannelConfig(addresses=addresses)) as client:
        # The same settings are the same evaluation: after a lost connection the command can be repeated.
        name = hashlib.sha256(text.encode()).hexdigest()[:32]
        request = pb.StartEvaluationRequest(request_id=name, config_json=text)
        evaluation_id = client.start_evaluation(request).evaluation_id
        try:
            with _bar(console) as on_progress:
                for seen in client.watch_evaluation(evaluation_id, timeout_s=86_400.0):
                    on_progress(Progress(seen.records_done, seen.records_total, seen.seconds_left, seen.cost))
                    message = seen.message
        except KeyboardInterrupt:
            client.cancel_evaluation(evaluation_id)
            typer.echo(f"cancelled evaluation {evaluation_id}; its verdicts so far are kept", err=True)
            raise typer.Exit(130) from None
        report = client.get_report(evaluation_id)
    if not report.summary_json:
        raise FailedPreconditionError(f"the evaluation gave no report: {message}")
    summary: dict[str, Any] = json.loads(report.summary_json)
    show(console, summary, config.language)
    console.print(f"report on the server: {report.output_dir}", markup=False, soft_wrap=True)
    return summary


def _console() -> Any:
    """The terminal; what its encoding cannot show is a question mark, not an end of the program."""
    import io
    import sys

    from rich.console import Console

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    return Console()


class _bar:
    """A progress bar with the time left; where the output is no terminal, a line now and then."""

    def __init__(self, console: Any) -> None:
        self._console = console

    def __enter__(self) -> Callable[[Progress], None]:
        import time

        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._told = time.monotonic()
        self._clock = time.monotonic
        self._progress = Progress(
            BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"), console=self._console, transient=True,
            disable=not self._console.is_terminal,
        )  # fmt: skip
        self._task = self._progress.add_task("", total=None, left="")
        self._progress.start()
        return self._show

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def _show(self, seen: Progress) -> None:
        left = f"{_span(seen.seconds_left)} left" if seen.seconds_left >= 0 else ""
        cost = f"  ${seen.cost:.4f}" if seen.cost else ""
        self._progress.update(self._task, completed=seen.records_done, total=seen.records_total, left=left + cost)
        if not self._console.is_terminal and self._clock() - self._told >= 10:
            self._told = self._clock()
            typer.echo(f"{seen.records_done}/{seen.records_total} records {left}{cost}", err=True)


def _span(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
