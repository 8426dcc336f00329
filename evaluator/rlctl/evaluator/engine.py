"""Evaluations of a service: each in a folder of its own, so that a restarted service goes on where it was.

state_dir/<id>/request.json     the settings, written before the evaluation is acknowledged
state_dir/<id>/ended.json       state and message, once it ended
state_dir/<id>/report/          journal and report, unless the settings name another output_dir
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rlctl.core.config import validate
from rlctl.core.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError, RlctlError
from rlctl.evaluator.asking import Progress
from rlctl.evaluator.config import EvaluatorConfig, EvaluatorServiceConfig
from rlctl.evaluator.files import SUMMARY
from rlctl.evaluator.job import run_job

_log = logging.getLogger("rlctl.evaluator")

State = Literal["running", "done", "stopped", "failed", "cancelled"]
_STATES: dict[str, State] = {"done": "done", "stopped": "stopped"}


@dataclass
class Running:
    """An evaluation of this service."""

    id: str
    config: EvaluatorConfig
    folder: Path
    state: State = "running"
    message: str = ""
    progress: Progress = field(default_factory=lambda: Progress(0, 0, -1.0, 0.0))
    task: asyncio.Task[None] | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def output_dir(self) -> Path:
        return Path(self.config.output_dir)

    def notify(self) -> None:
        """Wakes everyone who watches."""
        self.changed.set()
        self.changed = asyncio.Event()


class EvaluatorEngine:
    """Starts, follows, cancels and resumes evaluations; knows no gRPC."""

    def __init__(self, config: EvaluatorServiceConfig) -> None:
        self._config = config
        self._evaluations: dict[str, Running] = {}
        self._slots = asyncio.Semaphore(config.max_running)

    def resume(self) -> None:
        """Picks up every evaluation in the state folder; those that had not ended go on from their journals."""
        for request in sorted(self._config.state_dir.glob("*/request.json")):
            try:
                evaluation = self._load(request.parent)
            except (OSError, ValueError, KeyError, TypeError, RlctlError) as error:
                _log.error("%s is left out, it cannot be read: %s", request.parent, error)
                continue
            self._evaluations[evaluation.id] = evaluation
            if evaluation.state == "running":
                self._launch(evaluation)

    def _load(self, folder: Path) -> Running:
        tree = json.loads((folder / "request.json").read_text(encoding="utf-8"))
        evaluation = Running(folder.name, validate(EvaluatorConfig, tree), folder)
        ended = folder / "ended.json"
        if ended.exists():
            end = json.loads(ended.read_text(encoding="utf-8"))
            evaluation.state, evaluation.message = end["state"], end["message"]
        return evaluation

    def start(self, request_id: str, config_json: str) -> str:
        """Starts an evaluation; the same request again gives the same id, and goes on if it was stopped or failed.

        Raises InvalidArgumentError, also when a known request comes with other settings.
        """
        tree = self._tree(config_json)
        evaluation_id = hashlib.sha256(request_id.encode()).hexdigest()[:24]
        folder = self._config.state_dir / evaluation_id
        tree.setdefault("output_dir", (folder / "report").as_posix())
        config = validate(EvaluatorConfig, tree)
        known = self._evaluations.get(evaluation_id)
        if known is None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                _write(folder / "request.json", tree)
            except OSError as error:
                raise FailedPreconditionError(f"the service cannot write {folder}: {error.strerror}") from error
            known = self._evaluations[evaluation_id] = Running(evaluation_id, config, folder)
            self._launch(known)
        elif known.config != config:
            raise InvalidArgumentError("request_id was used with other settings; use a new one", field="request_id")
        elif known.state in ("stopped", "failed", "cancelled"):
            (folder / "ended.json").unlink(missing_ok=True)
            known.state, known.message = "running", ""
            self._launch(known)
        return evaluation_id

    @staticmethod
    def _tree(config_json: str) -> dict[str, Any]:
        try:
            tree = json.loads(config_json or "{}")
        except (ValueError, RecursionError) as error:
            raise InvalidArgumentError(f"config_json is not JSON: {error}", field="config_json") from error
        if not isinstance(tree, dict):
            raise InvalidArgumentError("config_json must be an object of settings", field="config_json")
        if tree.get("dry_run"):
            raise InvalidArgumentError("a dry run is told by the CLI; it is no evaluation", field="config_json")
        return tree

    def _launch(self, evaluation: Running) -> None:
        evaluation.task = asyncio.create_task(self._run(evaluation), name=f"evaluation-{evaluation.id}")

    async def _run(self, evaluation: Running) -> None:
        def on_progress(progress: Progress) -> None:
            evaluation.progress = progress
            evaluation.notify()

        try:
            async with self._slots:
                summary = await run_job(evaluation.config, on_progress)
            self._end(evaluation, _STATES[summary["state"]], summary["message"])
        except RlctlError as error:
            self._end(evaluation, "failed", error.message)
        except Exception as error:
            _log.exception("evaluation %s failed", evaluation.id)
            self._end(evaluation, "failed", f"{type(error).__name__}; the service's log tells more")

    def _end(self, evaluation: Running, state: State, message: str) -> None:
        evaluation.state, evaluation.message = state, message
        try:
            _write(evaluation.folder / "ended.json", {"state": state, "message": message})
        except OSError as error:
            # A restarted service goes on with it, from its journal.
            _log.error("evaluation %s: its end cannot be noted: %s", evaluation.id, error)
        _log.info("evaluation %s: %s %s", evaluation.id, state, message)
        evaluation.notify()

    def get(self, evaluation_id: str) -> Running:
        """Raises NotFoundError."""
        evaluation = self._evaluations.get(evaluation_id)
        if evaluation is None:
            raise NotFoundError(f"there is no evaluation {evaluation_id!r}")
        return evaluation

    async def watch(self, evaluation_id: str) -> AsyncIterator[Running]:
        """The evaluation at every change, at most ten a second, until it ended."""
        evaluation = self.get(evaluation_id)
        while evaluation.state == "running":
            changed = evaluation.changed
            yield evaluation
            await changed.wait()
            await asyncio.sleep(0.1)
        yield evaluation

    async def cancel(self, evaluation_id: str) -> State:
        """Ends an evaluation; its verdicts so far are kept."""
        evaluation = self.get(evaluation_id)
        if evaluation.state == "running":
            await self._stop(evaluation)
            self._end(evaluation, "cancelled", "cancelled; the same request goes on from the verdicts so far")
        return evaluation.state

    def report(self, evaluation_id: str) -> tuple[Running, str]:
        """The evaluation and its summary. Raises FailedPreconditionError while it runs."""
        evaluation = self.get(evaluation_id)
        if evaluation.state == "running":
            raise FailedPreconditionError("the evaluation is still running; watch it until it ends")
        path = evaluation.output_dir / SUMMARY
        has_report = evaluation.state in ("done", "stopped") and path.exists()
        return evaluation, path.read_text(encoding="utf-8") if has_report else ""

    async def close(self) -> None:
        """Stops all work without ending it: it goes on at the next start."""
        await asyncio.gather(*(self._stop(evaluation) for evaluation in self._evaluations.values()))

    @staticmethod
    async def _stop(evaluation: Running) -> None:
        if evaluation.task is not None:
            evaluation.task.cancel()
            await asyncio.gather(evaluation.task, return_exceptions=True)


def _write(path: Path, tree: dict[str, Any]) -> None:
    """Whole or not at all, on disk when it returns."""
    aside = path.with_suffix(".part")
    with aside.open("w", encoding="utf-8") as file:
        json.dump(tree, file, ensure_ascii=False)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)
