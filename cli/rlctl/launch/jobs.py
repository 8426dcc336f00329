"""Jobs on a run that is not up: its processes, or some of them, to one end."""

from __future__ import annotations

import json
import secrets
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from rlctl.core.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from rlctl.core.ports import free_port
from rlctl.launch import sweep
from rlctl.launch.host import Host, watch
from rlctl.launch.launcher import Interrupts, planned
from rlctl.launch.restart import RestartPolicy
from rlctl.launch.run_folder import RunFolder
from rlctl.launch.spec import Plan, ProcessSpec
from rlctl.launch.supervisor import Supervisor

TICK_S = 0.5


def replay_run(folder: RunFolder, console: Console) -> None:
    """Trains a run again from its journal: the trainer's ranks, and a fresh critic at a plain address."""
    plan = _plan(folder)
    critic = f"127.0.0.1:{free_port()}"
    target = folder.path.resolve() / "replay"
    shutil.rmtree(target, ignore_errors=True)
    processes = [_replaying(spec, critic, target) for spec in (*plan.of("critic"), *plan.of("trainer"))]
    console.print(f"replaying {folder.path.name}: {', '.join(spec.name for spec in processes)}", highlight=False)
    _run(replace(plan, processes=processes), folder, console)


def export_model(folder: RunFolder, output: Path, step: int | None, console: Console) -> None:
    """Writes the policy of a step (none: the finished model, else the newest checkpoint's) to `output`."""
    if output.exists():
        raise InvalidArgumentError(f"{output} exists: name a folder that does not")
    final = folder.path / "model"
    if step is None and final.is_dir():
        shutil.copytree(final, output)
        return
    newest = folder.checkpoint_step()
    if newest is None:
        raise NotFoundError(f"run {folder.path.name!r} has no checkpoint yet")
    checkpoint = folder.path.resolve() / "checkpoints" / f"step-{step or newest:08d}"
    if not checkpoint.is_dir():
        raise NotFoundError(
            f"run {folder.path.name!r} has no checkpoint of step {step}; the newest is of step {newest}"
        )
    plan = _plan(folder)
    processes = [
        replace(
            spec,
            name=f"export-{spec.rank}",
            module="rlctl.launch.exporter",
            config={"trainer": spec.config, "checkpoint": str(checkpoint), "output": str(output.resolve())},
        )
        for spec in plan.of("trainer")
    ]
    _run(replace(plan, processes=processes), folder, console)


def _plan(folder: RunFolder) -> Plan:
    """The processes of a run as it was launched last; the policy's folder is where it was then."""
    recipe, launch = folder.recipe(), folder.launch()
    written = folder.path / "config" / "trainer-0.json"
    if launch is None or not written.is_file():
        raise FailedPreconditionError(f"run {folder.path.name!r} was never started: launch it first")
    model: str = json.loads(written.read_text(encoding="utf-8"))["model"]
    return planned(recipe, model, launch.nats_port or 4222)


def _replaying(spec: ProcessSpec, critic: str, target: Path) -> ProcessSpec:
    config: dict[str, Any] = spec.config
    if spec.service == "critic":
        server = config["server"] | {"listen": critic, "registry": None}
        changed = config | {"server": server, "checkpoint_dir": str(target / "critic")}
    else:
        changed = config | {"replay_only": True, "critic": config["critic"] | {"addresses": [critic]}}
    return replace(spec, name=f"replay-{spec.name}", config=changed)


def _run(plan: Plan, folder: RunFolder, console: Console) -> None:
    """Runs processes until the trainer's first rank is done; none is started again."""
    folder.take()
    launch_id = secrets.token_hex(8)
    release = watch(launch_id)
    sweep.mark(launch_id)
    host = Host(folder.path, folder.recipe().cluster, launch_id)
    interrupts = Interrupts()
    try:
        host.open()
        interrupts.install()
        host.place(plan.processes)
        supervisor = Supervisor(plan, host, RestartPolicy(0, 1.0, time.monotonic), lambda restart: None)
        supervisor.start()
        while not supervisor.tick(TICK_S):
            if interrupts.count:
                supervisor.kill()
                raise FailedPreconditionError("interrupted")
        supervisor.close()
    finally:
        host.close()
        release()
        folder.release()
    console.print("done", highlight=False)
