"""An evaluation as a process that can be killed, started in milliseconds: a server forks it with all imports done."""

from __future__ import annotations

import asyncio
import multiprocessing
import multiprocessing.process
import sys

PRELOAD = [
    "openai", "openai.resources.chat", "matplotlib.figure", "openpyxl", "rlctl.evaluator.report",
    "rlctl.evaluator.job", "support.evaluations",
]  # fmt: skip


def _run(config_json: str) -> None:
    from rlctl.evaluator.config import EvaluatorConfig
    from rlctl.evaluator.job import run_job

    summary = asyncio.run(run_job(EvaluatorConfig.model_validate_json(config_json)))
    sys.exit(0 if summary["state"] == "done" else 1)


def start(config_json: str) -> multiprocessing.process.BaseProcess:
    """Starts `rlctl.evaluator.job.run_job` in a process of its own; exit code 0 when it is done."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    process = context.Process(target=_run, args=(config_json,), daemon=True)
    process.start()
    return process
