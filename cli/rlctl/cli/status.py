"""`rlctl status [RUN]`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlctl.cli.launch import CHAIN, LOOPS
from rlctl.cli.runs import RunsDir, run_bus, run_folder

if TYPE_CHECKING:
    from rich.console import Console

    from rlctl.launch.monitor import Snapshot
    from rlctl.launch.run_folder import RunFolder


def status(
    run: Annotated[str | None, typer.Argument(help="Name of a run; none lists all.")] = None,
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """How a run stands, or all of them."""
    from rich.console import Console

    console = Console()
    if run is None:
        _list(console, runs_dir)
        return
    folder = run_folder(run, runs_dir)
    if folder.job == CHAIN:
        _chain(console, folder)
    elif folder.job in LOOPS:
        _loop(console, folder)
    elif folder.job != "ppo":
        _training(console, folder)
    elif folder.is_up() and folder.launch() is not None:
        _live(console, folder)
    else:
        _past(console, folder)


def _list(console: Console, runs_dir: Path) -> None:
    from rich.table import Table

    from rlctl.launch.run_folder import RunFolder

    folders = [RunFolder(path) for path in sorted(runs_dir.glob("*")) if (path / "recipe.toml").is_file()]
    if not folders:
        console.print(
            f"no runs in {runs_dir.resolve()}: start one with `rlctl launch ppo`", markup=False, highlight=False
        )
        return
    table = Table("run", "is", "steps", "held-out accuracy", "checkpoint")
    for folder in folders:
        summary = folder.summary()
        state = "up" if folder.is_up() else summary.get("status", "not finished")
        evaluation = summary.get("eval")
        moved = _moved(evaluation) if evaluation else "-"
        steps = f"{summary['steps']} of {summary['total_steps']}" if summary else "-"
        step = folder.checkpoint_step()
        table.add_row(folder.path.name, state, steps, moved, "-" if step is None else str(step))
    console.print(table)


def _moved(evaluation: dict[str, Any]) -> str:
    """A loop has the mean reward of its held-out prompts."""
    name = "accuracy" if "accuracy" in evaluation["after"] else "reward"
    what = "" if name == "accuracy" else " (reward)"
    return f"{evaluation['before'][name]:.3f} -> {evaluation['after'][name]:.3f}{what}"


def _past(console: Console, folder: RunFolder) -> None:
    from rlctl.launch.report import print_summary

    summary = folder.summary()
    if summary:
        print_summary(console, folder.path.name, folder.path, summary, restarts=0)
    step = folder.checkpoint_step()
    console.print(
        f"not up; {'no checkpoint yet' if step is None else f'newest checkpoint: step {step}'}",
        markup=False,
        highlight=False,
    )


def _training(console: Console, folder: RunFolder) -> None:
    """A run without services: its last step, and what it came to."""
    from rlctl.launch.training_view import print_training, progress
    from rlctl.trainer.metrics import read_rows

    rows = read_rows(folder.path / "metrics.jsonl")
    if folder.is_up():
        console.print(f"up ({folder.job}): {progress(rows[-1]) if rows else 'starting'}", markup=False, highlight=False)
        return
    summary = folder.summary()
    if summary:
        print_training(console, folder.path.name, folder.path, summary)
    step = folder.checkpoint_step()
    console.print(
        f"not up; {'no checkpoint yet' if step is None else f'newest checkpoint: step {step}'}",
        markup=False,
        highlight=False,
    )


def _loop(console: Console, folder: RunFolder) -> None:
    """The rounds so far, and what they came to."""
    from rlctl.launch.loop_view import print_loop, round_line
    from rlctl.trainer.metrics import read_rows

    if not folder.is_up() and folder.summary():
        print_loop(console, folder.path.name, folder.path, folder.summary())
        return
    rows, rounds = read_rows(folder.path / "metrics.jsonl"), folder.loop_recipe().rounds
    state = "up" if folder.is_up() else "not up"
    lines = [f"{state} ({folder.job}): {len(rows)} of {rounds} rounds sampled and scored"]
    for line in [*lines, *(round_line(row, rounds) for row in rows)]:
        console.print(line, markup=False, highlight=False)


def _chain(console: Console, folder: RunFolder) -> None:
    """The stages so far, or the report."""
    from rlctl.launch.chain_folder import ChainFolder
    from rlctl.launch.chain_view import print_chain, print_stages

    if folder.summary().get("status") == "done":
        print_chain(console, folder.summary(), folder.path)
        return
    console.print(f"{'up' if folder.is_up() else 'not up'} ({CHAIN})", markup=False, highlight=False)
    print_stages(console, ChainFolder(folder.path))


def _live(console: Console, folder: RunFolder) -> None:
    from rich.table import Table

    snapshot = _look(folder)
    table = Table("service", "instance", "address", "process", "serving", title=folder.path.name, title_justify="left")
    for one in snapshot.instances:
        table.add_row(one.service, one.instance_id, one.address, str(one.pid), "yes" if one.serving else "no")
    console.print(table)
    waiting = f", waiting for {snapshot.waiting_for}" if snapshot.waiting_for else ""
    console.print(
        f"{snapshot.state}{waiting}: step {snapshot.step} of {snapshot.total_steps}, policy version "
        f"{snapshot.policy_version}, checkpoint of step {snapshot.checkpoint_step}",
        markup=False,
        highlight=False,
    )
    console.print("ledger: " + ", ".join(f"{name} {count}" for name, count in snapshot.ledger.items()))


def _look(folder: RunFolder) -> Snapshot:
    """Asks the registry and the trainer once. Raises UnavailableError when NATS does not answer."""
    import asyncio

    from rlctl.bus.bus import Bus
    from rlctl.bus.registry import Registry
    from rlctl.clients.trainer import TrainerClient
    from rlctl.launch.monitor import Snapshot, look
    from rlctl.rpc.pool import Pool

    async def ask() -> Snapshot:
        bus = await Bus.connect(run_bus(folder), "status")
        try:
            registry = Registry(bus)
            pool = Pool("trainer", folder.recipe().channel, registry)
            try:
                return await look(registry, TrainerClient(pool), Snapshot())
            finally:
                await pool.close()
        finally:
            await bus.close()

    return asyncio.run(ask())
