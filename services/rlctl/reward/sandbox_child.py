"""The process that runs code which is not ours: a user's `reward_func`, or a task's verifier.

Run as a script (`python -I sandbox_child.py LIMITS function FILE` or `... task NAME`). Speaks JSON lines: one
`{"ready": true}` or `{"failed": message}`, then an answer for each request. Requests come on stdin and
answers go to stdout, both moved to private descriptors, so that prints and `input()` of that code touch neither.
Imports the standard library alone until it loads that code.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import inspect
import json
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

MESSAGE_CHARS = 500
#: Largest file that the code may write, bytes.
FILE_BYTES = 256 << 20

Run = Callable[[dict[str, Any]], list[dict[str, Any]]]


def main() -> None:
    requests, answers = _take_pipes()
    memory_mb, kind, source = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    _limit(memory_mb)
    try:
        run = _function(Path(source)) if kind == "function" else _task(source)
    except BaseException as error:
        _write(answers, {"failed": _describe(error)})
        return
    _write(answers, {"ready": True})
    for line in requests:
        request = json.loads(line)
        try:
            answer: dict[str, Any] = {"results": run(request)}
        except BaseException as error:
            reason = "REWARD_BAD_RESULT" if type(error).__name__ == "BadResultError" else "REWARD_RAISED"
            answer = _fault(reason, _describe(error))
        _write(answers, {"id": request["id"], **answer})


def _take_pipes() -> tuple[Any, Any]:
    requests = os.fdopen(os.dup(0), "r", encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    return requests, answers


def _limit(memory_mb: int) -> None:
    for what, limit in (
        (resource.RLIMIT_AS, memory_mb << 20),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (limit, limit))
    with contextlib.suppress(OSError, AttributeError):
        # PR_SET_PDEATHSIG (Linux): a service that was killed leaves no hanging function behind.
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _write(answers: Any, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


def _fault(reason: str, message: str) -> dict[str, Any]:
    return {"reason": reason, "message": message}


def _describe(error: BaseException) -> str:
    """The error in a line, with the place where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {str(error)[:MESSAGE_CHARS]}{where}"


def _module(path: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _function(path: Path) -> Run:
    results = _module(Path(__file__).with_name("results.py"), "rlctl_reward_results")
    sys.path.insert(0, str(path.parent))
    function = getattr(_module(path, "rlctl_reward_function"), "reward_func", None)
    if not callable(function):
        raise AttributeError(f"{path} has no function reward_func(queries, prompts, labels)")
    parameters = inspect.signature(function).parameters.values()
    everything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    names = {parameter.name for parameter in parameters}
    extra = [name for name in ("metadata", "responses") if everything or name in names]

    def run(request: dict[str, Any]) -> list[dict[str, Any]]:
        keywords = {name: request[name] for name in extra}
        answer = function(request["queries"], request["prompts"], request["labels"], **keywords)
        rows = results.read_results(answer, len(request["queries"]))
        return [{"reward": reward, "extra_logs": logs} for reward, logs in rows]

    return run


def _task(only: str) -> Run:
    from reasoning_gym.factory import DATASETS, get_score_answer_fn
    from reasoning_gym.utils import extract_answer

    if only and only not in DATASETS:
        raise ValueError(f"reasoning-gym has no task {only!r}")
    verifiers: dict[str, Callable[[str, dict[str, Any]], float]] = {}

    def verify(response: str, metadata: dict[str, Any]) -> dict[str, Any]:
        name, entry = only or str(metadata.get("task")), metadata.get("entry")
        if name not in DATASETS or not isinstance(entry, dict):
            return _fault("REWARD_BAD_METADATA", 'the metadata must be {"task": name, "entry": the task\'s entry}')
        try:
            if name not in verifiers:
                verifiers[name] = get_score_answer_fn(name)
            answer = extract_answer(response)
            reward = float(verifiers[name](response.strip() if answer is None else answer, entry))
        except Exception as error:
            return _fault("REWARD_RAISED", f"task {name!r}: {_describe(error)}")
        return {"reward": reward, "extra_logs": {}}

    def run(request: dict[str, Any]) -> list[dict[str, Any]]:
        return [verify(*pair) for pair in zip(request["responses"], request["metadata"], strict=True)]

    return run


if __name__ == "__main__":
    main()
