"""The policy's first weights before a run starts: fetched, or for the quickstart built and warmed up on the spot."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rlctl.core.errors import DeadlineError, FailedPreconditionError
from rlctl.launch.warmup import USUAL_STEPS, VERSION, Progress
from rlctl.models.source import cache_dir, resolve

#: Seconds between lines of progress.
SAY_EVERY_S = 3.0
#: The names in a recipe of the model that is built on the spot: warmed up, and as it is before.
ARITHMETIC = "rlctl/arithmetic-llama"
UNTRAINED = "rlctl/arithmetic-llama-untrained"


def prepare_model(
    name: str, seed: int, report: Callable[[str], None] = lambda line: None, timeout_s: float = 1800.0
) -> Path:
    """The folder of a model by any name: a folder, a hub name, or `rlctl/arithmetic-llama` (`-untrained`).

    The last is built from `seed` and, unless it is to be untrained, taught half of addition by supervised fine-tuning
    in a process of its own (about half a minute), once: it is kept in the cache folder under the recipe's version and
    the seed, and appears there whole or not at all. `report` gets a line of progress now and then. Raises
    NotFoundError (no such model), FailedPreconditionError (the warm-up failed) and DeadlineError (it took longer than
    `timeout_s` seconds).
    """
    if name not in (ARITHMETIC, UNTRAINED):
        return resolve(name)
    target = cache_dir() / "models" / f"{name.replace('/', '--')}-v{VERSION}-seed{seed}"
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.with_suffix(".lock"), timeout_s):
        if not (target / "config.json").is_file():
            aside = Path(tempfile.mkdtemp(dir=target.parent))
            try:
                _build(name, aside / "model", seed, report, timeout_s)
                (aside / "model").rename(target)
            finally:
                shutil.rmtree(aside, ignore_errors=True)
    return target


def _build(name: str, output: Path, seed: int, report: Callable[[str], None], timeout_s: float) -> None:
    report(f"building {name} (seed {seed})")
    errors = output.with_name("stderr")
    began = time.monotonic()
    with (
        errors.open("w") as stderr,
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "rlctl.launch.warmup",
                str(output),
                str(seed),
                *(["untrained"] * (name == UNTRAINED)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        ) as process,
    ):
        # A timer and not `wait(timeout)`: this thread is in `readline` all the while.
        timer = threading.Timer(timeout_s, process.kill)
        timer.start()
        try:
            assert process.stdout is not None
            said_at = 0.0
            for line in process.stdout:
                progress = Progress(**json.loads(line))
                if progress.seconds - said_at >= SAY_EVERY_S:
                    said_at = progress.seconds
                    report(progress_line(progress))
            code = process.wait()
        finally:
            timer.cancel()
            process.kill()
    if code == 0:
        return
    if time.monotonic() - began >= timeout_s:
        raise DeadlineError(f"the warm-up of {name} took more than {timeout_s:.0f} s")
    said = errors.read_text().strip().splitlines()
    raise FailedPreconditionError(
        f"the warm-up of {name} (seed {seed}) ended with code {code}: {said[-1] if said else 'it said nothing'}",
        reason="WARM_UP_FAILED",
    )


def progress_line(progress: Progress) -> str:
    """`warm-up: step 200, 3% of held-out sums right, about 15 s left`."""
    left = (USUAL_STEPS - progress.step) * progress.seconds / progress.step
    when = f"about {left:.0f} s left" if left > 0 else f"most seeds are done by step {USUAL_STEPS}, this one is not"
    return f"warm-up: step {progress.step}, {progress.accuracy:.0%} of held-out sums right, {when}"


@contextmanager
def _locked(path: Path, timeout_s: float) -> Iterator[None]:
    """Two launches at once build the model once; the lock goes with the process that holds it."""
    deadline = time.monotonic() + timeout_s
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise DeadlineError(
                        f"another process has been preparing the model for {timeout_s:.0f} s ({path})"
                    ) from None
                time.sleep(0.2)
        yield
    finally:
        os.close(descriptor)
