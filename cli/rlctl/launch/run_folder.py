"""A run's folder as the launcher sees it: its lock, its recipe, what is up right now.

runs/<name>/recipe.toml   settings it was started with
            run.json      the launch that is (or was last) at work
            lock          held by the launcher as long as it lives
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import socket
import time
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import tomli_w

from rlctl.core.config import StrictConfig, load
from rlctl.core.errors import ConfigError, FailedPreconditionError, NotFoundError
from rlctl.launch.loop_recipe import LOOP_RECIPES, Loop
from rlctl.launch.recipe import Recipe
from rlctl.launch.training_recipe import TRAINING_RECIPES, TrainingRecipe
from rlctl.rpc.config import ChannelConfig

#: Settings that decide what was issued, how a step was made of it, and what a checkpoint looks like.
BINDING = (
    "seed", "model", "data", "sampling", "advantage.estimator", "train.passes", "train.minibatches", "ptx",
    "actor.ranks", "actor.zero_stage", "actor.dtype", "actor.lora", "reference.model", "critic.model",
    "critic.learner.ranks", "critic.learner.zero_stage", "critic.learner.dtype", "critic.learner.lora",
)  # fmt: skip
#: Settings of an offline training with which it may go on.
CHANGEABLE = (
    "name", "runs_dir", "steps", "epochs", "eval_steps", "eval_data", "checkpoint", "log", "cluster", "stop",
    "learner.threads", "learner.micro_batch_tokens", "learner.packing", "learner.attention", "learner.logits_chunk",
    "learner.gradient_checkpointing", "learner.compile_layers", "learner.overlap_comm", "learner.optimizer",
    "reference.batch_tokens",
    *(f"teacher_service.{name}" for name in ChannelConfig.model_fields),
)  # fmt: skip
#: Settings of a loop with which it may go on; those of a round's training are looked at when that goes on.
LOOP_CHANGEABLE = (
    "name", "runs_dir", "rounds:", "cluster", "checkpoint", "log", "generation", "reward.addresses", "reward.threads",
    "reward.timeout_s", "sampling.timeout_s", "sampling.at_once",
    *(setting for setting in CHANGEABLE if setting.startswith("learner.")),
)  # fmt: skip
_CHECKPOINT = re.compile(r"step-(\d+)")


@dataclass(frozen=True)
class Launch:
    """A launcher at work, as `run.json` tells it."""

    launch_id: str
    pid: int
    host: str
    started_unix_s: float
    nats_url: str
    nats_port: int


class RunFolder:
    """The folder of a run, whether it exists or not."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[str] | None = None

    @property
    def exists(self) -> bool:
        return (self.path / "recipe.toml").is_file()

    def require(self) -> None:
        """Raises NotFoundError."""
        if not self.exists:
            raise NotFoundError(f"no run {self.path.name!r} in {self.path.parent}: `rlctl status` lists the runs there")

    @property
    def job(self) -> str:
        """`ppo`, or the job of an offline training. Raises NotFoundError."""
        self.require()
        return str(tomllib.loads((self.path / "recipe.toml").read_text(encoding="utf-8")).get("job", "ppo"))

    def recipe(self) -> Recipe:
        """Raises NotFoundError, and FailedPreconditionError for a training without services."""
        if self.job != "ppo":
            raise FailedPreconditionError(
                f"run {self.path.name!r} is a training of its own ({self.job}), without the services of "
                "`rlctl launch ppo` that this needs"
            )
        return load(Recipe, self.path / "recipe.toml")

    def training_recipe(self) -> TrainingRecipe:
        """Of an offline training."""
        return load(TRAINING_RECIPES[self.job], self.path / "recipe.toml")  # type: ignore[index]

    def summary(self) -> dict[str, Any]:
        """What the trainer wrote when it last ended; empty before."""
        return _read_json(self.path / "summary.json")

    def checkpoint_step(self) -> int | None:
        """Step of the newest checkpoint."""
        folder = self.path / "checkpoints"
        names = (_CHECKPOINT.fullmatch(path.name) for path in folder.iterdir()) if folder.is_dir() else ()
        return max((int(name[1]) for name in names if name), default=None)

    def launch(self) -> Launch | None:
        """The last launch, alive or not."""
        told = _read_json(self.path / "run.json")
        return Launch(**told) if told else None

    def is_up(self) -> bool:
        """Whether a launcher holds the run right now (on any machine that shares the storage)."""
        try:
            with (self.path / "lock").open("r") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def take(self) -> None:
        """Makes the run ours until this process ends. Raises FailedPreconditionError when another one has it."""
        self.path.mkdir(parents=True, exist_ok=True)
        lock = (self.path / "lock").open("a+")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            last = self.launch()
            who = f"process {last.pid} on {last.host}" if last else "another process"
            raise FailedPreconditionError(
                f"run {self.path.name!r} is at work already ({who}): watch it with `rlctl status {self.path.name}`, "
                f"end it with `rlctl stop {self.path.name}`, or choose another name (name=...)",
                reason="RUN_IS_UP",
            ) from None
        self._lock = lock

    def release(self) -> None:
        """Lets go of the run; a folder in which nothing was started is removed."""
        if self._lock is None:
            return
        self._lock.close()
        self._lock = None
        if not self.exists:
            (self.path / "lock").unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                self.path.rmdir()

    def begin_anew(self) -> Path | None:
        """Sets what is here aside and takes the folder again; returns where it is kept."""
        self.release()
        kept = self.set_aside()
        self.take()
        return kept

    def set_aside(self) -> Path | None:
        """Moves an older run of this name away, beside this one; where to."""
        if not self.exists:
            return None
        aside = self.path.with_name(f"{self.path.name[:40]}.{time.strftime('%Y%m%d-%H%M%S')}")
        self.path.rename(aside)
        return aside

    def write_recipe(self, recipe: StrictConfig) -> None:
        tree = recipe.model_dump(
            mode="json", exclude={"bus": {"url", "run"}, "server": {"registry"}, "channel": {"addresses"}}
        )
        _write(self.path / "recipe.toml", tomli_w.dumps(_none_as_text(tree)))

    def write_launch(self, launch_id: str, nats_url: str, nats_port: int) -> None:
        launch = Launch(launch_id, os.getpid(), socket.gethostname(), time.time(), nats_url, nats_port)
        _write(self.path / "run.json", json.dumps(asdict(launch), indent=1))

    def refuse_other(self, recipe: Recipe) -> None:
        """Raises ConfigError when a run cannot go on with these settings."""
        before = self.recipe()
        changed = list(differences(before, recipe, BINDING))
        if before.needs_reference != recipe.needs_reference:
            changed.append(f"kl.coef: {before.kl.coef} -> {recipe.kl.coef}")
        self.refuse(changed)

    def refuse_other_training(self, recipe: TrainingRecipe) -> None:
        """Raises ConfigError when an offline training cannot go on with these settings."""
        if self.job != recipe.job:
            self.refuse([f"job: {self.job!r} -> {recipe.job!r}"])
        names = tuple(type(recipe).model_fields)
        changed = differences(self.training_recipe(), recipe, names)
        self.refuse([line for line in changed if not line.startswith(CHANGEABLE)])

    def loop_recipe(self) -> Loop:
        """Of a loop around an offline training."""
        return load(LOOP_RECIPES[self.job], self.path / "recipe.toml")

    def refuse_other_loop(self, recipe: Loop) -> None:
        """Raises ConfigError when a loop cannot go on with these settings."""
        if self.job != recipe.job:
            self.refuse([f"job: {self.job!r} -> {recipe.job!r}"])
        changed = differences(self.loop_recipe(), recipe, tuple(type(recipe).model_fields))
        self.refuse([line for line in changed if not line.startswith(LOOP_CHANGEABLE)])

    def refuse(self, changed: list[str]) -> None:
        """Raises ConfigError where there is any setting with which the run cannot go on."""
        if changed:
            name = self.path.name
            raise ConfigError(
                f"run {name!r} exists and was started with other settings:\n"
                + "\n".join(f"  {line}" for line in changed)
                + "\nThey decide what was issued and trained so far. Go on with the old ones, choose another name "
                f"(name={name}-2), or start anew with --fresh (the old run is kept beside it)."
            )


def differences(before: StrictConfig, after: StrictConfig, names: tuple[str, ...]) -> Iterator[str]:
    """`name: old -> new` for each named setting, or section, that differs."""
    old, new = before.model_dump(mode="json"), after.model_dump(mode="json")
    for name in names:
        yield from _differences(name, _at(old, name), _at(new, name))


def _differences(name: str, old: Any, new: Any) -> Iterator[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from _differences(f"{name}.{key}", old.get(key), new.get(key))
    elif old != new:
        yield f"{name}: {old!r} -> {new!r}"


def _at(tree: dict[str, Any], name: str) -> Any:
    value: Any = tree
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _none_as_text(tree: Any) -> Any:
    """TOML has no null."""
    if isinstance(tree, dict):
        return {key: _none_as_text(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_none_as_text(value) for value in tree]
    return "none" if tree is None else tree


def _read_json(path: Path) -> dict[str, Any]:
    try:
        told: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return told


def _write(path: Path, text: str) -> None:
    aside = path.with_name(path.name + ".writing")
    aside.write_text(text, encoding="utf-8")
    os.replace(aside, path)
