"""`rlctl launch`: from a recipe to a finished run.

checks ─► model ─► plan ─► Ray ─► nats-server ─► all other processes at once ─► watch ─► end in order
"""

from __future__ import annotations

import secrets
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from rich.console import Console

from rlctl.bus.bus import Bus
from rlctl.bus.config import BusConfig
from rlctl.core.errors import DeadlineError
from rlctl.core.ports import free_port
from rlctl.launch import sweep
from rlctl.launch.checks import check
from rlctl.launch.host import Host, watch
from rlctl.launch.machine_checks import busy
from rlctl.launch.monitor import Monitor
from rlctl.launch.plan import Planner
from rlctl.launch.recipe import Recipe
from rlctl.launch.report import print_plan, print_summary
from rlctl.launch.restart import RestartPolicy
from rlctl.launch.run_folder import RunFolder
from rlctl.launch.spec import Plan
from rlctl.launch.supervisor import Restart, Supervisor
from rlctl.launch.view import View
from rlctl.rpc.portal import Portal

TICK_S = 0.5
NATS_READY_S = 30.0
NATS_REACH_S = 10.0
DONE, STOPPED = 0, 130


class Interrupts:
    """Counts SIGINT and SIGTERM: the first asks for an orderly end, the second for a quick one."""

    def __init__(self) -> None:
        self.count = 0

    def install(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._handle)

    def end_in_order(
        self, supervisor: Supervisor, timeout_s: float, update: Callable[[], None], say: Callable[[str], None]
    ) -> None:
        """Lets the trainer end its step and commit; a further signal ends everything now."""
        asked = self.count

        def on_tick() -> None:
            update()
            if self.count > asked:
                raise _Hurry

        try:
            committed = supervisor.stop(timeout_s, on_tick)
        except _Hurry:
            supervisor.kill()
            return
        if not committed:
            say("the trainer did not end in order; the run goes on from its last checkpoint")

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1


def dry_run(recipe: Recipe, console: Console) -> None:
    """Checks a recipe and prints its plan; starts and fetches nothing. Raises ConfigError."""
    folder = RunFolder(recipe.run_dir)
    if folder.exists:
        folder.refuse_other(recipe)
    plan = planned(recipe, recipe.model, recipe.nats_port or 4222)
    check(recipe, plan, here=False, ports=not folder.is_up(), gpus=None)
    print_plan(console, recipe, plan, recipe.model)
    gpus = sum(process.gpus for process in plan.processes)
    if gpus and not local_gpus():
        console.print(
            "note       this machine has no GPU: the plan is valid, but cannot be launched here", style="yellow"
        )


def launch(recipe: Recipe, console: Console, *, fresh: bool) -> int:
    """Runs a recipe to its end, or goes on with it; 0 when done, 130 when stopped. Raises RlctlError."""
    folder = RunFolder(recipe.run_dir)
    plan = planned(recipe, recipe.model, recipe.nats_port or 4222)
    check(recipe, plan, here=True, ports=not folder.is_up(), gpus=None)
    folder.take()
    try:
        if fresh and folder.exists:
            console.print(f"the earlier run is kept in {folder.begin_anew()}", markup=False, highlight=False)
        if folder.exists:
            folder.refuse_other(recipe)
            if _is_done(folder, recipe):
                _tell_done(folder, recipe, console)
                return DONE
        return _Session(recipe, folder, console).run()
    finally:
        folder.release()


def local_gpus() -> int:
    """GPUs of this machine, by their device files."""
    return len(list(Path("/dev").glob("nvidia[0-9]*")))


def planned(recipe: Recipe, model: str, nats_port: int) -> Plan:
    """The plan of a recipe, with models on GPUs where it says so, or where there are any."""
    device = recipe.cluster.device
    promised = recipe.cluster.gpus_per_node > 0 or local_gpus() > 0
    return Planner(
        recipe, model=model, nats_port=nats_port, gpu=device == "gpu" or (device == "auto" and promised)
    ).plan()


def _is_done(folder: RunFolder, recipe: Recipe) -> bool:
    summary = folder.summary()
    return summary.get("status") == "done" and summary["steps"] >= recipe.train.steps


def _tell_done(folder: RunFolder, recipe: Recipe, console: Console) -> None:
    print_summary(console, recipe.name, recipe.run_dir, folder.summary(), restarts=0)
    steps = folder.summary()["steps"]
    console.print(
        f"This run is done. Go on with train.steps={2 * steps}, start anew with --fresh, or choose another name "
        "(name=...).",
        markup=False,
        highlight=False,
    )


class _Session:
    """One launch."""

    def __init__(self, recipe: Recipe, folder: RunFolder, console: Console) -> None:
        self._recipe = recipe
        self._folder = folder
        self._console = console
        self._interrupts = Interrupts()
        self._launch_id = secrets.token_hex(8)
        self._summary_before = folder.summary()

    def run(self) -> int:
        recipe, folder = self._recipe, self._folder
        last = folder.launch()
        if last is not None and last.host == socket.gethostname():
            sweep.sweep(sweep.LAUNCH, last.launch_id)
        model = self._prepare_model()
        port = self._nats_port(last.nats_port if last else 0)
        plan = planned(recipe, model, port)
        check(recipe, plan, here=True, ports=False, gpus=None if recipe.cluster.ray_address else local_gpus())
        print_plan(self._console, recipe, plan, model)
        bus = BusConfig.model_validate(plan.of("trainer")[0].config["bus"])
        if recipe.nats_url is not None:
            _reach_nats(bus)
        folder.write_recipe(recipe)
        folder.write_launch(self._launch_id, bus.url, port)
        release = watch(self._launch_id)
        sweep.mark(self._launch_id)
        host = Host(folder.path, recipe.cluster, self._launch_id)
        try:
            return self._supervised(host, plan, bus)
        finally:
            host.close()
            release()

    def _supervised(self, host: Host, plan: Plan, bus: BusConfig) -> int:
        recipe = self._recipe
        self._say("starting Ray" if host.embedded else f"joining Ray at {recipe.cluster.ray_address}")
        host.open()
        self._interrupts.install()
        host.place(plan.processes)
        policy = RestartPolicy(recipe.cluster.restarts, recipe.cluster.restart_window_s, time.monotonic)
        view = View(self._console, plan, self._folder.path, recipe.train.steps)

        def on_restart(restart: Restart) -> None:
            view.restarts += 1
            others = f", with {', '.join(restart.with_others)}" if restart.with_others else ""
            view.say(f"{restart.name} {restart.why}: restarting it{others}")

        supervisor = Supervisor(plan, host, policy, on_restart)
        resumed = self._folder.checkpoint_step()
        self._say(f"starting {len(plan.processes)} processes" + (f", going on from step {resumed}" if resumed else ""))
        monitor = None
        try:
            if plan.of("nats"):
                supervisor.start(lambda spec: spec.service == "nats")
                self._wait_for_nats(supervisor, plan.of("nats")[0].config["port"])
            supervisor.start()
            monitor = Monitor(bus, recipe.channel)
            with view:
                self._watch(supervisor, view, monitor)
        finally:
            if monitor is not None:
                monitor.close()
            asked = self._interrupts.count
            supervisor.close(lambda: self._interrupts.count > asked)
        return self._end(policy.total)

    def _watch(self, supervisor: Supervisor, view: View, monitor: Monitor) -> None:
        """Until the trainer is done, or was asked to stop."""
        while not supervisor.tick(TICK_S):
            view.update(monitor.snapshot, supervisor.alive())
            if self._interrupts.count:
                self._stop(supervisor, view, monitor)
                return
        view.update(monitor.snapshot, supervisor.alive())

    def _stop(self, supervisor: Supervisor, view: View, monitor: Monitor) -> None:
        """The first Ctrl-C: step and checkpoint end in order; the second: everything ends now."""
        view.say("stopping: the step in hand is finished and committed; once more to stop at once")
        self._interrupts.end_in_order(
            supervisor,
            self._recipe.cluster.stop_timeout_s,
            lambda: view.update(monitor.snapshot, supervisor.alive()),
            view.say,
        )

    def _end(self, restarts: int) -> int:
        """Says what the run came to, or how to go on with it."""
        recipe, summary = self._recipe, self._folder.summary()
        done = _is_done(self._folder, recipe)
        if summary and summary != self._summary_before:
            print_summary(self._console, recipe.name, recipe.run_dir, summary, restarts=restarts)
        if done:
            return DONE
        step = self._folder.checkpoint_step()
        from_where = f"from step {step}" if step is not None else "from the beginning"
        self._say(f"stopped; the same command goes on {from_where}")
        return STOPPED

    def _prepare_model(self) -> str:
        """The policy's folder, made or fetched if need be; on several machines its name, for each fetches it itself."""
        recipe = self._recipe
        if recipe.cluster.nodes > 1 or Path(recipe.model).expanduser().is_dir():
            return recipe.model
        from rlctl.launch.prepare import prepare_model

        return str(prepare_model(recipe.model, recipe.seed, self._say))

    def _nats_port(self, last: int) -> int:
        """The port set, the one this run had, or a free one."""
        for port in (self._recipe.nats_port, last):
            if port and not busy("127.0.0.1", port):
                return port
        return free_port()

    def _wait_for_nats(self, supervisor: Supervisor, port: int) -> None:
        deadline = time.monotonic() + NATS_READY_S
        while not busy("127.0.0.1", port):
            supervisor.tick(0.05)
            if time.monotonic() > deadline:
                raise DeadlineError(
                    f"nats-server did not listen on port {port} within {NATS_READY_S:.0f} s: see "
                    f"{self._folder.path}/logs/nats-0.log"
                )

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)


def _reach_nats(bus: BusConfig) -> None:
    """Raises UnavailableError, or what else is wrong with a NATS server of one's own, before anything is started."""
    with Portal("rlctl-preflight") as portal:
        connected = portal.call(Bus.connect, bus.model_copy(update={"connect_timeout_s": NATS_REACH_S}), "launcher")
        portal.call(connected.close)


class _Hurry(Exception):
    """A second Ctrl-C."""
