"""`rlctl launch sft|rm|dpo|kto|kd|prm`: from a recipe to a trained model.

checks ─► models ─► plan ─► Ray ─► one process a rank ─► watch, restart from the last commit ─► model
"""

from __future__ import annotations

import secrets
import socket
import time
from pathlib import Path

from rich.console import Console

from rlctl.launch import sweep
from rlctl.launch.host import Host, watch
from rlctl.launch.launcher import DONE, STOPPED, TICK_S, Interrupts, local_gpus
from rlctl.launch.prepare import prepare_model
from rlctl.launch.restart import RestartPolicy
from rlctl.launch.run_folder import RunFolder
from rlctl.launch.spec import Plan
from rlctl.launch.supervisor import Restart, Supervisor
from rlctl.launch.training_plan import check_training, plan_training
from rlctl.launch.training_recipe import TrainingRecipe, models_of
from rlctl.launch.training_view import TrainingView, print_training, print_training_plan


def dry_run_training(recipe: TrainingRecipe, console: Console) -> None:
    """Checks a recipe and prints its plan; starts and fetches nothing. Raises ConfigError."""
    folder = RunFolder(recipe.run_dir)
    if folder.exists:
        folder.refuse_other_training(recipe)
    plan = _planned(recipe, models_of(recipe))
    check_training(recipe, plan, here=False, gpus=None)
    print_training_plan(console, recipe, plan)
    if plan.processes[0].gpus and not local_gpus():
        console.print(
            "note       this machine has no GPU: the plan is valid, but cannot be launched here", style="yellow"
        )


def launch_training(recipe: TrainingRecipe, console: Console, *, fresh: bool) -> int:
    """Runs a recipe to its end, or goes on with it; 0 when done, 130 when stopped. Raises RlctlError."""
    folder = RunFolder(recipe.run_dir)
    check_training(recipe, _planned(recipe, models_of(recipe)), here=True, gpus=None)
    folder.take()
    try:
        if fresh and folder.exists:
            console.print(f"the earlier run is kept in {folder.begin_anew()}", markup=False, highlight=False)
        if folder.exists:
            folder.refuse_other_training(recipe)
        return _Session(recipe, folder, console).run()
    finally:
        folder.release()


def _planned(recipe: TrainingRecipe, models: dict[str, str]) -> Plan:
    device = recipe.cluster.device
    promised = recipe.cluster.gpus_per_node > 0 or local_gpus() > 0
    return plan_training(recipe, models, gpu=device == "gpu" or (device == "auto" and promised))


class _Session:
    """One launch."""

    def __init__(self, recipe: TrainingRecipe, folder: RunFolder, console: Console) -> None:
        self._recipe = recipe
        self._folder = folder
        self._console = console
        self._interrupts = Interrupts()
        self._launch_id = secrets.token_hex(8)

    def run(self) -> int:
        recipe, folder = self._recipe, self._folder
        last = folder.launch()
        if last is not None and last.host == socket.gethostname():
            sweep.sweep(sweep.LAUNCH, last.launch_id)
        plan = _planned(recipe, self._prepare_models())
        gpus = None if recipe.cluster.ray_address else local_gpus()
        check_training(recipe, plan, here=True, gpus=gpus)
        print_training_plan(self._console, recipe, plan)
        folder.write_recipe(recipe)
        folder.write_launch(self._launch_id, "", 0)
        release = watch(self._launch_id)
        sweep.mark(self._launch_id)
        host = Host(folder.path, recipe.cluster, self._launch_id)
        try:
            return self._supervised(host, plan)
        finally:
            host.close()
            release()

    def _supervised(self, host: Host, plan: Plan) -> int:
        cluster = self._recipe.cluster
        host.open()
        self._interrupts.install()
        host.place(plan.processes)
        view = TrainingView(self._console, self._folder.path)

        def on_restart(restart: Restart) -> None:
            view.say(f"{restart.name} {restart.why}: going on from the last checkpoint")

        policy = RestartPolicy(cluster.restarts, cluster.restart_window_s, time.monotonic)
        supervisor = Supervisor(plan, host, policy, on_restart)
        resumed = self._folder.checkpoint_step()
        view.say(f"starting {len(plan.processes)} processes" + (f", going on from step {resumed}" if resumed else ""))
        try:
            supervisor.start()
            with view:
                done = self._watch(supervisor, view)
        finally:
            asked = self._interrupts.count
            supervisor.close(lambda: self._interrupts.count > asked)
        return self._end(done)

    def _watch(self, supervisor: Supervisor, view: TrainingView) -> bool:
        """Until the trainer is done (True), or was asked to stop."""
        while not supervisor.tick(TICK_S):
            view.update()
            if self._interrupts.count:
                view.say("stopping: the step in hand is finished and committed; once more to stop at once")
                timeout_s = self._recipe.cluster.stop_timeout_s
                self._interrupts.end_in_order(supervisor, timeout_s, view.update, view.say)
                return False
        view.update()
        return True

    def _end(self, done: bool) -> int:
        """Says what the run came to, or how to go on with it."""
        recipe, folder = self._recipe, self._folder
        summary = folder.summary()
        if done or summary.get("status") == "done":
            print_training(self._console, folder.path.name, folder.path, summary)
            return DONE
        step = folder.checkpoint_step()
        from_where = f"from step {step}" if step is not None else "from the beginning"
        self._console.print(
            f"stopped; the same command (rlctl launch {recipe.job} ...) goes on {from_where}",
            markup=False,
            highlight=False,
        )
        return STOPPED

    def _prepare_models(self) -> dict[str, str]:
        """Their folders, made or fetched if need be; on several machines the names, for each fetches them itself."""
        recipe = self._recipe
        named = models_of(recipe)
        if recipe.cluster.nodes > 1:
            return named
        return {name: str(self._prepare(model)) if model else "" for name, model in named.items()}

    def _prepare(self, model: str) -> Path:
        return prepare_model(model, self._recipe.seed, lambda line: self._console.print(line, highlight=False))
