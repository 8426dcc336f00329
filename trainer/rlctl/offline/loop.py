"""The loop of all offline trainers. Every rank runs it, in step.

restore the last commit, then, step after step:

  items ─ cursor ─► batch ─ each rank's share ─► objective: loss, backward, optimizer step
    ▲                                                 │ metrics.jsonl, TensorBoard, W&B
    └── commit (atomic, with manifest) ◄── measure the held-out items ◄┘          at the end: the model, summary.json
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from rlctl.data.cursor import PromptCursor
from rlctl.learner import distributed
from rlctl.learner.learner import Learner
from rlctl.offline.config import OfflineConfig
from rlctl.offline.objective import Item, Objective, size
from rlctl.offline.state import LEARNER, OfflineCheckpoints, OfflineState
from rlctl.offline.window import Window
from rlctl.trainer.metrics import EVALUATIONS, MetricsLog, keep_before

logger = logging.getLogger(__name__)
#: Seconds between lines of progress.
BEAT_S = 10.0


@dataclass(frozen=True)
class Reached:
    """Where training stands after a measurement, or at its end."""

    step: int
    steps: int
    loss: float
    """Mean of the steps since the last report."""
    held_out: dict[str, float] | None
    seconds: float
    """Since the first step, without the time between processes."""
    stopped: bool = False
    """Asked to stop before the last step."""


class Loop:
    """One training, from its last commit to its end. The metrics log is rank 0's alone."""

    def __init__(
        self,
        config: OfflineConfig,
        learner: Learner,
        objective: Objective,
        items: Sequence[Item],
        held_out: Sequence[Item],
        cursor: PromptCursor,
        steps: int,
    ) -> None:
        self._config = config
        self._learner = learner
        self._objective = objective
        self._items = items
        self._held_out = held_out
        self._cursor = cursor
        self._steps = steps
        self._store = OfflineCheckpoints(config.run_dir / "checkpoints")
        self._window = Window()
        self._losses = Window()
        self.step = 0
        self.measured: dict[str, float] | None = None
        self._committed: int | None = None
        self._begun = time.monotonic()
        self._seconds_before = 0.0
        self._beat = self._begun
        self._first = 0
        self._metrics: MetricsLog | None = None

    @property
    def seconds(self) -> float:
        return self._seconds_before + time.monotonic() - self._begun

    def run(
        self,
        report: Callable[[Reached], None] = lambda reached: None,
        every: Callable[[dict[str, float] | None], int] | None = None,
        enough: Callable[[dict[str, float]], bool] = lambda measured: False,
        stop: Callable[[], bool] = lambda: False,
    ) -> Reached:
        """Trains until the last step, until `enough` of a measurement, or until asked to `stop` (on rank 0).

        `every` gives the steps between measurements by the last one; `report` is called on rank 0 after each.
        """
        self._restore()
        config = self._config
        self._begun = self._beat = time.monotonic()
        if distributed.rank() == 0:
            if self._committed is None:
                keep_before(config.run_dir / EVALUATIONS, 0)
            self._metrics = MetricsLog(config.log, config.name, config, config.run_dir, self.step)
        try:
            if self.step == 0 and self.measured is None:
                self._measure()
                self._tell(report)
            while self.step < self._steps and not (self.measured is not None and enough(self.measured)):
                if self._agreed(stop):
                    self._commit()
                    return self._reached(stopped=True)
                self._train()
                period = config.eval_steps if every is None else every(self.measured)
                if _due(self.step, period) or self.step == self._steps:
                    self._measure()
                    self._tell(report)
                if _due(self.step, config.checkpoint.steps):
                    self._commit()
            self._commit()
            return self._reached()
        finally:
            if self._metrics is not None:
                self._metrics.close()

    def _train(self) -> None:
        begun = time.monotonic()
        positions = self._cursor.take(self._config.batch_size)
        items = [self._items[position.index] for position in positions]
        metrics = self._objective.step(items)
        self.step += 1
        seconds = time.monotonic() - begun
        tokens = sum(map(size, items))
        metrics |= {"epoch": positions[-1].epoch + (positions[-1].position + 1) / len(self._items)}
        metrics |= {"tokens": float(tokens), "time/step": seconds, "tokens_per_second": tokens / seconds}
        metrics |= {"progress": self.step / self._steps}
        self._window.add(metrics)
        self._losses.add({"loss": metrics["loss"]})
        if self._metrics is not None and (_due(self.step, self._config.log.steps) or self.step == self._steps):
            self._metrics.step(self.step - 1, self._window.means())
            self._window.clear()
        if self._metrics is not None and time.monotonic() - self._beat > BEAT_S:
            self._beat = time.monotonic()
            logger.info("%s", progress_line(self._reached(), self.step - self._first, self._beat - self._begun))

    def _measure(self) -> None:
        if not self._held_out:
            return
        # What is measured is the model that will be saved.
        with self._learner.averaged() if self._config.learner.ema_as_model else nullcontext():
            self.measured = self._objective.measure(self._held_out)
        if self._metrics is not None:
            self._metrics.evaluation(self.step, self.measured | {"n": float(len(self._held_out))})

    def _tell(self, report: Callable[[Reached], None]) -> None:
        if distributed.rank() == 0:
            report(self._reached())
        self._losses.clear()

    def _reached(self, stopped: bool = False) -> Reached:
        loss = self._losses.means().get("loss", float("nan"))
        return Reached(self.step, self._steps, loss, self.measured, self.seconds, stopped)

    def _agreed(self, stop: Callable[[], bool]) -> bool:
        """Rank 0 was asked; all must end at the same step."""
        if distributed.world_size() == 1:
            return stop()
        asked = b"1" if distributed.rank() == 0 and stop() else b"0"
        return distributed.broadcast_bytes(asked if distributed.rank() == 0 else None) == b"1"

    def _restore(self) -> None:
        distributed.barrier()
        found = self._store.latest()
        if found is None:
            return
        folder, state = found
        self._learner.load(folder / LEARNER)
        self._cursor.restore(state.cursor)
        self.step, self.measured, self._seconds_before = state.step, state.measured, state.seconds
        self._window.restore(state.unwritten)
        self._committed = self._first = state.step
        if distributed.rank() == 0:
            logger.info("going on from the checkpoint of step %d", state.step)

    def _commit(self) -> None:
        """A checkpoint of this step, unless there is one."""
        if self._committed == self.step:
            return
        aside = self._store.path(self.step).with_suffix(".tmp")
        if distributed.rank() == 0:
            self._store.begin(self.step)
        distributed.barrier()
        self._learner.save(aside / LEARNER)
        if distributed.rank() == 0:
            state = OfflineState(self.step, self._cursor.state(), self.measured, self._window.state(), self.seconds)
            self._store.commit(aside, state, self._config.checkpoint.keep)
        distributed.barrier()
        self._committed = self.step


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def progress_line(reached: Reached, done: int, seconds: float) -> str:
    """`step 20 of 300, loss 0.512, held-out accuracy 0.81, 12 s left`; `done` steps took `seconds`."""
    parts = [f"step {reached.step} of {reached.steps}"]
    if reached.loss == reached.loss:
        parts.append(f"loss {reached.loss:.4g}")
    if reached.held_out is not None:
        parts.append(f"held-out loss {reached.held_out['loss']:.4g}, accuracy {reached.held_out['accuracy']:.3f}")
    if done:
        parts.append(f"{seconds / done * (reached.steps - reached.step):.0f} s left")
    return ", ".join(parts)
