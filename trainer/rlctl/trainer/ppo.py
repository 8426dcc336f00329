"""The PPO-family loop: the coordinator, on rank 0.

restore: last commit ─► replay the journal's settled steps (no token is generated again)
then, step after step:

  issue ──► [prompts stream] ──► workers ──► [rollouts stream] ──► collect
                                                                     │ journal, fsync, ack
  commit ◄── publish (new version to every replica) ◄── update ◄─────┘
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import Future
from typing import TypeVar

from rlctl.core.errors import DeadlineError, FutileError
from rlctl.trainer.commit import Commits
from rlctl.trainer.config import TrainerConfig
from rlctl.trainer.evaluate import evaluate
from rlctl.trainer.metrics import MetricsLog
from rlctl.trainer.phases import PhaseTimer
from rlctl.trainer.progress import Progress
from rlctl.trainer.ranks import Ranks
from rlctl.trainer.rollout_log import RolloutLog
from rlctl.trainer.rollouts import told
from rlctl.trainer.services import Services
from rlctl.trainer.status import Controls, Status
from rlctl.trainer.step import EXPORT_MODEL, max_staleness, take_step
from rlctl.trainer.summary import write_summary
from rlctl.v1 import journal_pb2, trainer_pb2

logger = logging.getLogger(__name__)
T = TypeVar("T")

TICK_S = 1.0
CATCH_UP_S = 2.0


class StopAsked(Exception):
    """Unwinds to `run`: the trainer was asked to stop while it waited."""


class Coordinator:
    """Owns a run: decides what every rank does, and when."""

    def __init__(
        self,
        config: TrainerConfig,
        ranks: Ranks,
        services: Services,
        commits: Commits,
        progress: Progress,
        status: Status,
        controls: Controls,
    ) -> None:
        self._config = config
        self._ranks = ranks
        self._services = services
        self._commits = commits
        self._progress = progress
        self._status = status
        self._controls = controls
        self._metrics = MetricsLog(config.log, config.run, config, config.run_dir, progress.step)
        self._rollouts = RolloutLog(config)
        self._looked = 0.0
        self._empty_steps = 0

    def run(self) -> None:
        """Trains until the last step, or until asked to stop. The progress is that of the last commit."""
        for recorded in self._commits.to_replay(self._progress):
            logger.info("replaying step %d from the journal", recorded.step)
            self._status.update(state=trainer_pb2.TRAINER_STATE_REPLAYING, step=self._progress.step)
            self._update(recorded, PhaseTimer(), publish=False)
        try:
            self._train()
            self._finish()
        except StopAsked:
            self._stop()
        self._metrics.close()
        self._status.update(state=trainer_pb2.TRAINER_STATE_DONE)

    def _train(self) -> None:
        self._wait_for_services()
        self._services.sync.publish(self._progress.step)
        if self._progress.step == 0 and not self._metrics.evaluations():
            self._evaluate()
        while self._progress.step < self._config.train.steps:
            self._pause_if_asked()
            timer = PhaseTimer()
            settled = self._collect(timer)
            self._rollouts.write(settled)
            self._update(settled, timer, publish=True)
            self._end_if_all_is_dropped(settled)
            if self._due(self._config.checkpoint.steps) or self._controls.checkpoint.is_set():
                self._commit()
            if self._due(self._config.eval.steps):
                self._evaluate()

    def _collect(self, timer: PhaseTimer) -> journal_pb2.SettledStep:
        """Issues the step's groups and waits for all of them."""
        stage, step = self._services.stage, self._progress.step
        begun = progressed = time.monotonic()
        self._status.update(state=trainer_pb2.TRAINER_STATE_RUNNING, step=step)
        self._services.call(stage.issue, step)
        missing = len(stage.missing)
        while not self._services.call(stage.collect, TICK_S):
            now = time.monotonic()
            self._raise_if_stopped()
            if len(stage.missing) < missing:
                missing, progressed = len(stage.missing), now
            elif now - progressed > self._config.stall_timeout_s:
                raise DeadlineError(
                    f"no prompt group of step {step} came for {self._config.stall_timeout_s:g} s; {missing} are "
                    f"missing, the first is {stage.missing[0]}. Look at the logs of the rollout worker and of what it "
                    "calls.",
                    reason="ROLLOUTS_STALLED",
                )
            self._status.update(waiting_for=f"{missing} prompt groups of step {step}")
            self._tick()
        settled, clock = self._services.call(stage.settle)
        timer.rollouts(time.monotonic() - begun, clock)
        self._status.update(waiting_for="")
        return settled

    def _update(self, settled: journal_pb2.SettledStep, timer: PhaseTimer, *, publish: bool) -> None:
        """Trains on a settled step, publishes the new weights, and writes the step's metrics."""
        progress, sync = self._progress, self._services.sync
        staleness = max_staleness(settled, sync.versions, progress.step)
        metrics = take_step(self._config, self._ranks, progress, settled, timer)
        if publish:
            with timer.phase("sync"):
                sync.publish(progress.step)
            metrics["sync/bytes"] = float(sync.bytes_sent)
        metrics |= timer.metrics()
        metrics["tokens_per_second"] = metrics.get("response_tokens", 0.0) / metrics["time/step"]
        metrics["staleness/max"] = staleness
        metrics |= {f"ledger/{name}": float(count) for name, count in progress.ledger.counts().items()}
        self._metrics.step(settled.step, metrics)
        self._status.update(step=progress.step, policy_version=sync.version, metrics=metrics)

    def _evaluate(self) -> None:
        if self._services.held_out is None:
            return
        self._status.update(state=trainer_pb2.TRAINER_STATE_EVALUATING)
        services = self._services
        result = self._wait(
            services.portal.spawn(evaluate, services.generation, services.reward, services.held_out, self._config),
            "the evaluation (generation and reward services)",
        )
        self._metrics.evaluation(self._progress.step, result)
        logger.info("after %d steps: accuracy %.3f of %d", self._progress.step, result["accuracy"], result["n"])

    def _commit(self) -> None:
        self._commits.commit(self._progress)
        self._controls.checkpoint.clear()
        self._status.update(checkpoint_step=self._progress.step)

    def _finish(self) -> None:
        self._commit_if_new()
        if all(row["step"] != self._progress.step for row in self._metrics.evaluations()):
            self._evaluate()
        self._status.update(state=trainer_pb2.TRAINER_STATE_STOPPING)
        self._ranks.run(EXPORT_MODEL)
        write_summary(self._config, self._progress, self._metrics, done=True)

    def _stop(self) -> None:
        """Ends in order, to be gone on with: what was issued and is not settled waits on the streams."""
        self._status.update(state=trainer_pb2.TRAINER_STATE_STOPPING)
        self._commit_if_new()
        write_summary(self._config, self._progress, self._metrics, done=False)

    def _end_if_all_is_dropped(self, settled: journal_pb2.SettledStep) -> None:
        """Ends a run that only uses up prompts: a reward that fails for all of them would empty it overnight."""
        self._empty_steps = 0 if settled.groups else self._empty_steps + 1
        limit = self._config.train.max_empty_steps
        if limit and self._empty_steps >= limit:
            self._stop()
            raise FutileError(
                f"{self._empty_steps} steps in a row had nothing to train on (train.max_empty_steps); in the last, "
                f"{told(settled)}. Mend the cause and launch again: the run goes on from step {self._progress.step}.",
                reason="NOTHING_TO_TRAIN",
            )

    def _commit_if_new(self) -> None:
        if self._commits.last_step != self._progress.step:
            self._commit()

    def _pause_if_asked(self) -> None:
        while not self._controls.resume.is_set() and not self._controls.stop.is_set():
            self._status.update(state=trainer_pb2.TRAINER_STATE_PAUSED)
            self._ranks.idle()
            self._controls.resume.wait(TICK_S)
        self._raise_if_stopped()

    def _raise_if_stopped(self) -> None:
        if self._controls.stop.is_set():
            raise StopAsked

    def _wait_for_services(self) -> None:
        for whom, future in self._services.waits():
            logger.info("waiting for %s", whom)
            self._status.update(waiting_for=whom)
            self._wait(future, whom)
        self._status.update(waiting_for="")

    def _wait(self, future: Future[T], whom: str) -> T:
        """A result of the event loop, while the other ranks hear that this one lives."""
        begun = time.monotonic()
        while not future.done():
            if self._controls.stop.is_set():
                future.cancel()
                raise StopAsked
            if time.monotonic() - begun > self._config.stall_timeout_s:
                raise DeadlineError(f"waited {self._config.stall_timeout_s:g} s for {whom}")
            self._tick()
            try:
                return future.result(TICK_S)
            except TimeoutError:
                if future.done():
                    raise
        return future.result()

    def _tick(self) -> None:
        """While rank 0 waits: the other ranks hear of it, and replicas that came late get their weights."""
        self._ranks.idle()
        now = time.monotonic()
        if self._services.sync.version and now - self._looked > CATCH_UP_S:
            self._looked = now
            self._services.sync.catch_up()

    def _due(self, every: int) -> bool:
        return every > 0 and self._progress.step % every == 0
