"""`python -m rlctl.launch.warmup OUT SEED [untrained]`: builds the small arithmetic model and, unless it is to be
untrained, teaches it half of addition.

A process of its own, so that neither torch nor a process group enters the launcher. It writes the model to OUT and
its progress to standard output, one JSON object a line (the fields of `Progress`); all else goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

from rlctl.core import log
from rlctl.core.errors import RlctlError
from rlctl.core.process import prepare_compute
from rlctl.data.config import SupervisedDataConfig, TaskConfig
from rlctl.learner.config import LearnerConfig, OptimizerConfig
from rlctl.offline.config import AccuracyStop, OfflineLogConfig, SFTConfig
from rlctl.trainer.config import CheckpointConfig

#: Part of the cache's key: grows with every change of the model, its data or its training.
VERSION = 2
#: Nothing else runs meanwhile; a second thread takes a third off a step of batches this large.
THREADS = min(2, os.cpu_count() or 1)
#: Steps by which most seeds are done; what the time left is told by.
USUAL_STEPS = 230

#: Sums of two numbers with one or two digits. `b + a` lies in the same part as `a + b`; the quickstart recipe trains
#: on `rl`, tunes on `dev` and tests on `test`, so its data settings must be these.
SUMS = TaskConfig(
    name="chain_sum",
    size=60_000,
    parameters={"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2},
)
#: One number, to be said again. Half of addition's difficulty is to look at the right digits: copying teaches that, and
#: without it most seeds stay for hundreds of steps where every sum's last digit is a guess.
COPIES = TaskConfig(
    name="chain_sum",
    size=1300,
    parameters={"min_terms": 1, "max_terms": 1, "min_digits": 1, "max_digits": 2},
)
SPLITS = {"sft": 0.42, "rl": 0.45, "dev": 0.06, "test": 0.07}


@dataclass(frozen=True)
class Progress:
    """How far the warm-up is."""

    step: int
    accuracy: float
    """On held-out sums."""
    seconds: float
    """Since its first step."""


def sums(split: str) -> SupervisedDataConfig:
    """A part of the sums."""
    return SupervisedDataConfig(
        task=SUMS,
        include=r"\+",
        unique=True,
        splits=SPLITS,
        split_key=r"\d+",
        split=split,
        max_prompt_len=64,
        max_response_len=8,
    )


def settings(model: Path, runs_dir: Path, seed: int) -> SFTConfig:
    """The warm-up: until half of the held-out sums come out right, which leaves reinforcement learning its half.

    The model is the moving average of the weights, which forgets the noise of a rate this high: its accuracy rises
    without leaps, and few right answers are out of its reach. Large batches get every seed off the plateau on which
    the last digit is a guess.
    """
    return SFTConfig(
        name="warm-up",
        runs_dir=runs_dir,
        seed=seed,
        model=str(model),
        steps=800,
        batch_size=256,
        data=[sums("sft"), SupervisedDataConfig(task=COPIES, max_prompt_len=64, max_response_len=8)],
        eval_data=sums("dev"),
        eval_steps=10,
        stop=AccuracyStop(accuracy=0.5, watch_above=0.2, watch_steps=1),
        checkpoint=CheckpointConfig(steps=0),
        log=OfflineLogConfig(tensorboard=False, steps=50),
        learner=LearnerConfig(
            dtype="float32",
            zero_stage=0,
            threads=THREADS,
            ema_decay=0.99,
            ema_as_model=True,
            optimizer=OptimizerConfig(lr=3e-3, betas=(0.9, 0.95), warmup_steps=20),
        ),
    )


def warm_up(output: Path, seed: int, progress: TextIO) -> None:
    """Writes the warmed-up model and tokenizer to `output`. Raises what `train` raises."""
    from rlctl.models.arithmetic import write_untrained
    from rlctl.offline.loop import Reached
    from rlctl.offline.run import MODEL, train

    def report(reached: Reached) -> None:
        if not reached.step:
            return
        assert reached.held_out is not None
        line = Progress(reached.step, reached.held_out["accuracy"], reached.seconds)
        progress.write(json.dumps(asdict(line)) + "\n")
        progress.flush()

    with tempfile.TemporaryDirectory(dir=output.parent) as folder:
        untrained = Path(folder) / "untrained"
        write_untrained(untrained, seed)
        config = settings(untrained, Path(folder), seed)
        train(config, report)
        (config.run_dir / MODEL).rename(output)


def main() -> int:
    logger = log.setup("warmup")
    prepare_compute(THREADS)
    # Libraries print where they like: standard output is kept for the progress.
    progress = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    output, seed = Path(sys.argv[1]), int(sys.argv[2])
    try:
        if sys.argv[3:] == ["untrained"]:
            from rlctl.models.arithmetic import write_untrained

            write_untrained(output, seed)
        else:
            warm_up(output, seed, progress)
    except RlctlError as error:
        logger.error("%s", error.message)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
