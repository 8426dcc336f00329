"""The trainer's end of the bus: issues prompt groups, and collects them again, each exactly once.

    issue:    cursor → tasks → journal (fsync) → prompts stream
    collect:  rollouts stream → held until the step is complete → journal (fsync) → acks

All of it runs on the trainer's event loop; `Journal` writes are short.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import dataclass, field

from rlctl.algorithms.config import GROUP_ESTIMATORS
from rlctl.bus.bus import Bus
from rlctl.bus.consumer import Consumer, Delivery
from rlctl.bus.ids import group_key
from rlctl.data.prompts import PromptDataset
from rlctl.trainer.config import TrainerConfig
from rlctl.trainer.journal import Journal
from rlctl.trainer.phases import RolloutClock
from rlctl.trainer.progress import Progress
from rlctl.trainer.tasks import make_task, reissued
from rlctl.v1 import journal_pb2, rollout_pb2

logger = logging.getLogger(__name__)

REISSUED = "REISSUED"


@dataclass
class Wanted:
    """What a step waits for: the newest attempt of each of its prompts, in cursor order."""

    step: int
    tasks: dict[str, rollout_pb2.PromptTask] = field(default_factory=dict)
    superseded: list[rollout_pb2.PromptTask] = field(default_factory=list)
    arrived: dict[str, Delivery[rollout_pb2.RolloutGroup]] = field(default_factory=dict)

    def add(self, task: rollout_pb2.PromptTask) -> None:
        """Takes a task in, in the place of an earlier attempt at the same prompt."""
        place = (task.id.epoch, task.id.prompt)
        old = next((key for key, held in self.tasks.items() if (held.id.epoch, held.id.prompt) == place), None)
        if old is None:
            self.tasks[group_key(task.id)] = task
            return
        self.superseded.append(self.tasks[old])
        self.tasks = {
            (group_key(task.id) if key == old else key): (task if key == old else held)
            for key, held in self.tasks.items()
        }

    @property
    def missing(self) -> list[str]:
        return [key for key in self.tasks if key not in self.arrived]


class RolloutStage:
    """Issues and collects the prompt groups of one step at a time."""

    def __init__(
        self,
        config: TrainerConfig,
        bus: Bus,
        consumer: Consumer[rollout_pb2.RolloutGroup],
        journal: Journal,
        progress: Progress,
        prompts: PromptDataset,
    ) -> None:
        self._config = config
        self._bus = bus
        self._consumer = consumer
        self._journal = journal
        self._progress = progress
        self._prompts = prompts
        self._wanted: Wanted | None = None
        self.duplicates = 0

    @property
    def missing(self) -> list[str]:
        """Groups of the step in hand that have not come yet."""
        return self._wanted.missing if self._wanted is not None else []

    async def issue(self, step: int) -> None:
        """Issues a step's groups; after a crash, first settles what became of those issued before it."""
        records = self._journal.read(step)
        wanted = Wanted(step)
        for task in records.issued:
            wanted.add(task)
        for task in list(wanted.tasks.values()):
            await self._find_or_reissue(wanted, task)
        fresh = [
            make_task(self._config, step, position, self._prompts[position.index])
            for position in self._progress.cursor.take(self._config.sampling.prompts_per_step - len(wanted.tasks))
        ]
        await self._publish(wanted, fresh)
        self._wanted = wanted

    async def _find_or_reissue(self, wanted: Wanted, task: rollout_pb2.PromptTask) -> None:
        # A worker acks a prompt only when its rollout is stored: so prompts are looked at first.
        if await self._bus.prompt_exists(task.id) or await self._bus.rollout_exists(task.id):
            return
        logger.warning("prompt group %s was issued but is on neither stream: issuing it again", group_key(task.id))
        await self._publish(wanted, [reissued(task)])

    async def _publish(self, wanted: Wanted, tasks: list[rollout_pb2.PromptTask]) -> None:
        if not tasks:
            return
        self._journal.append_issued(wanted.step, tasks)
        self._progress.ledger.issue(tasks)
        for task in tasks:
            wanted.add(task)
        await asyncio.gather(*(self._bus.publish_prompt(task) for task in tasks))

    async def collect(self, timeout_s: float) -> bool:
        """Takes what has come within `timeout_s`; True when the step is complete."""
        assert self._wanted is not None
        missing = self._wanted.missing
        if not missing:
            return True
        for delivery in await self._consumer.fetch(len(missing), timeout_s):
            key = group_key(delivery.message.task.id)
            if key in self._wanted.tasks and key not in self._wanted.arrived:
                self._wanted.arrived[key] = delivery
            else:
                self.duplicates += 1
                await delivery.ack()
        return not self._wanted.missing

    async def settle(self) -> tuple[journal_pb2.SettledStep, RolloutClock]:
        """Journals the complete step, then acks its messages. Returns what is to be trained on."""
        wanted = self._wanted
        assert wanted is not None and not wanted.missing
        settled = journal_pb2.SettledStep(step=wanted.step)
        clock = RolloutClock()
        least = 2 if self._config.advantage.estimator in GROUP_ESTIMATORS else 1
        for key in wanted.tasks:
            delivery = wanted.arrived[key]
            clock.add(delivery.message)
            fault = group_fault(delivery.message, least)
            if fault is None:
                settled.groups.append(delivery.data)
            else:
                settled.dropped.append(
                    journal_pb2.DroppedGroup(id=delivery.message.task.id, reason=fault[0], message=fault[1])
                )
        for task in wanted.superseded:
            settled.dropped.append(journal_pb2.DroppedGroup(id=task.id, reason=REISSUED, message="issued again"))
        if settled.dropped:
            logger.warning("step %d: %s", wanted.step, told(settled))
        self._journal.append_settled(settled)
        self._progress.ledger.settle(settled)
        await asyncio.gather(*(delivery.ack_sync() for delivery in wanted.arrived.values()))
        self._wanted = None
        return settled, clock


def told(settled: journal_pb2.SettledStep) -> str:
    """Of a step with dropped groups: how many, and the reasons with an example each."""
    examples: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for drop in settled.dropped:
        counts[drop.reason] += 1
        examples.setdefault(drop.reason, drop.message)
    reasons = "; ".join(f"{counts[reason]} x {reason} ({example})" for reason, example in examples.items())
    return f"{len(settled.dropped)} of {len(settled.dropped) + len(settled.groups)} prompt groups dropped: {reasons}"


def sample_fault(task: rollout_pb2.PromptTask, sample: rollout_pb2.RolloutSample) -> tuple[str, str] | None:
    """Why a sample cannot be trained on, as (reason, words); None when it can."""
    tokens = len(sample.sample.token_ids)
    if not sample.HasField("reward"):
        return "REWARD_FAILED", sample.reward_error
    if not tokens:
        return "EMPTY_RESPONSE", "the response has no tokens"
    if len(sample.sample.logprobs) != tokens:
        return "LOGPROBS_MISSING", "the sampler gave no log-probs"
    if task.needs_reference and len(sample.reference_logprobs) != tokens:
        return "REFERENCE_MISSING", "the reference gave no log-probs"
    return None


def group_fault(group: rollout_pb2.RolloutGroup, least: int) -> tuple[str, str] | None:
    """Why a group cannot be trained on: it has an error, or fewer than `least` samples without one."""
    if group.error:
        return "GENERATE_FAILED", group.error
    faults = [sample_fault(group.task, sample) for sample in group.samples]
    if faults.count(None) >= least:
        return None
    return next((fault for fault in faults if fault is not None), ("GENERATE_FAILED", "the group has too few samples"))
