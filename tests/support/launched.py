"""A run of `rlctl launch` on a tiny model, every process real, watched from outside."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import tomli_w

from rlctl.launch import sweep
from rlctl.launch.run_folder import RunFolder
from support.tiny import tiny_llama

#: Starts of vLLM and DeepSpeed take half a minute on two cores that do other things too.
START_S = 300.0

REWARD = """
def reward_func(queries, prompts, labels):
    return [sum(ch in "0123456789" for ch in query[len(prompt):]) / 8 for query, prompt in zip(queries, prompts)]
"""


def tiny_recipe(folder: Path, **settings: Any) -> Path:
    """Writes model, prompts, reward function and recipe of a PPO run in fp32; returns the recipe's path.

    `settings` are dotted (`train.steps` as `train__steps`).
    """
    folder.mkdir(parents=True, exist_ok=True)
    model = tiny_llama(folder / "model")
    (folder / "reward.py").write_text(REWARD)
    prompts = [{"prompt": f"{a}+{b}=", "label": str(a + b)} for a in range(20) for b in range(20)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in prompts))
    learner: dict[str, Any] = {"dtype": "float32", "zero_stage": 1, "optimizer": {"lr": 1e-3}}
    data = {"path": str(folder / "prompts.jsonl"), "splits": {"train": 0.9, "test": 0.1}, "max_prompt_len": 32}
    recipe: dict[str, Any] = {
        "name": "run",
        "runs_dir": str(folder / "runs"),
        "model": str(model),
        "seed": 3,
        "train": {"steps": 6, "passes": 2, "minibatches": 2},
        "sampling": {"prompts_per_step": 6, "n": 4, "max_new_tokens": 8},
        "data": data | {"split": "train"},
        "eval": {"data": data | {"split": "test"}},
        "kl": {"coef": 0.02, "target": 0.5},
        "reward": {"scorers": [{"kind": "function", "path": str(folder / "reward.py")}]},
        "actor": learner,
        "critic": {"learner": learner},
        "generation": {"dtype": "float32", "max_model_len": 128, "kv_cache_mb": 64},
        "reference": {"dtype": "float32"},
        "checkpoint": {"steps": 3},
        "journal": {"keep": "all"},
        "log": {"rollouts": 2},
    }
    for key, value in settings.items():
        *sections, last = key.split("__")
        place = recipe
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    path = folder / "recipe.toml"
    path.write_text(tomli_w.dumps(recipe))
    return path


class LaunchedRun:
    """`rlctl launch` of a recipe that names its run `run`, in a session of its own."""

    def __init__(self, recipe: Path, job: str = "ppo") -> None:
        self.recipe = recipe
        self.job = job
        self.folder = RunFolder(recipe.parent / "runs" / "run")
        self.path = self.folder.path
        self.output = recipe.parent / "launch.log"
        self._marks: set[str] = set()
        self._sessions: set[int] = set()
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *arguments: str) -> None:
        """Launches the run, or goes on with it."""
        before = self.folder.launch()
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rlctl.cli.main", "launch", self.job, str(self.recipe), *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | {"RLCTL_LOG_LEVEL": "DEBUG", "COLUMNS": "200"},
                start_new_session=True,
            )
        self._sessions.add(self.process.pid)
        self.until(lambda: self.folder.launch() not in (None, before), START_S, "the launcher's run.json")
        self._marks.add(self.launch_id)

    @property
    def launch_id(self) -> str:
        launch = self.folder.launch()
        assert launch is not None
        return launch.launch_id

    def pids(self, name: str) -> list[int]:
        """Processes of one service: guard, service, what it started."""
        found = sweep.marked(sweep.PROCESS, f"{self.launch_id}/{name}")
        return sorted(found)

    def service(self, name: str, module: str) -> psutil.Process:
        """The service's own process (`python -m module`)."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            for pid in self.pids(name):
                try:
                    line = psutil.Process(pid).cmdline()
                except psutil.Error:
                    continue
                if module in line and "-m" in line[:4]:
                    return psutil.Process(pid)
            time.sleep(0.1)
        raise AssertionError(f"no process of {name} runs {module}\n{self.tail()}")

    def left_over(self) -> list[list[str]]:
        """Command lines of processes of any launch of this run that are still alive: by mark, and by session."""
        found = []
        marked = {pid for mark in self._marks for pid in sweep.marked(sweep.LAUNCH, mark)}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                ours = process.pid in marked or os.getsid(process.pid) in self._sessions
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process.cmdline())
        return found

    def rows(self) -> list[dict[str, Any]]:
        """metrics.jsonl; a torn last line is passed over."""
        path = self.path / "metrics.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.split("\n")[:-1]]

    def step(self) -> int:
        """Steps trained so far."""
        rows = self.rows()
        return rows[-1]["step"] + 1 if rows else 0

    def until(self, true: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Waits; fails with the ends of the logs when it takes too long or the launcher ends."""
        deadline = time.monotonic() + timeout_s
        while not true():
            ended = self.process is not None and self.process.poll() is not None
            if ended and not true():
                raise AssertionError(f"the launcher ended while we waited for {what}\n{self.tail()}")
            if time.monotonic() > deadline:
                raise AssertionError(f"no {what} within {timeout_s:.0f} s\n{self.tail()}")
            time.sleep(0.05)

    def until_step(self, step: int, timeout_s: float = START_S) -> None:
        self.until(lambda: self.step() >= step, timeout_s, f"step {step}")

    def wait(self, timeout_s: float = START_S) -> int:
        """The launcher's exit status, once it has ended by itself."""
        assert self.process is not None
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the launcher did not end within {timeout_s:.0f} s\n{self.tail()}") from None

    def end(self) -> None:
        """Ends whatever is left; for the end of a test, however it went."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(30)
        for mark in self._marks:
            sweep.sweep(sweep.LAUNCH, mark)

    def log(self, name: str) -> str:
        path = self.path / "logs" / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def tail(self) -> str:
        """The ends of all logs, for a failure's message."""
        logs = sorted((self.path / "logs").glob("*.log")) if (self.path / "logs").is_dir() else []
        parts = [
            f"--- {path.name}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-15:])
            for path in [self.output, *logs]
            if path.exists()
        ]
        return "\n".join(parts)
