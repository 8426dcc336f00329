"""The rollout worker.

    prompt ──► Generate (n samples, one call a group)
                  ├──► Score             ┐ shared by the groups that wait
                  └──► ComputeLogprobs   ┘
               ──► one message ──► stored (PubAck) ──► prompt acknowledged

A prompt is acknowledged when its rollout is stored, so a worker may die at any point. Everything runs on one event
loop, on which no model runs, so that prompts in work are renewed in time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from rlctl.bus.bus import Bus
from rlctl.bus.consumer import Consumer, Delivery
from rlctl.bus.ids import group_key
from rlctl.clients.generation import GenerationClient
from rlctl.clients.reference import ReferenceClient
from rlctl.clients.reward import RewardClient, check_reached
from rlctl.core.errors import ResourceExhaustedError, RlctlError
from rlctl.rollout import metrics
from rlctl.rollout.batcher import Batcher
from rlctl.rollout.config import RolloutConfig
from rlctl.rollout.messages import (
    check_samples,
    failed_group,
    generate_request,
    score_items,
    scored_sample,
    sequence_bytes,
    sequences,
    temperature,
)
from rlctl.rollout.patience import MisconfiguredError, insist
from rlctl.rpc.pool import Pool
from rlctl.v1.generation_pb2 import GenerateResponse
from rlctl.v1.reference_pb2 import ComputeLogprobsRequest
from rlctl.v1.reward_pb2 import ItemError, ItemScore, ScoreItem, ScoreRequest
from rlctl.v1.rollout_pb2 import PromptTask, RolloutGroup
from rlctl.v1.tensor_pb2 import TokenFloats, TokenSequence

log = logging.getLogger("rlctl.rollout")

T = TypeVar("T")

_FETCH_S = 5.0
_SAY_EVERY_S = 10.0
#: Share of a message's limit that a shared call may fill: the rest is for what surrounds the items.
_FILL = 0.75


class Worker:
    """Answers prompts until it is cancelled. `run` raises what nobody can wait out."""

    def __init__(self, config: RolloutConfig, bus: Bus, pools: dict[str, Pool], name: str) -> None:
        """`pools` of "generation", "reward" and "reference"; `name` is written into every group."""
        self._config = config
        self._bus = bus
        self._pools = pools
        self._name = name
        self._generation = GenerationClient(pools["generation"])
        self._reward = RewardClient(pools["reward"])
        self._reference = ReferenceClient(pools["reference"])
        self._in_phase: Counter[str] = Counter()
        self._calls: Counter[str] = Counter()
        self._groups = 0
        self._freed = asyncio.Event()
        self._score = Batcher(
            self._call_score,
            max_items=config.score_batch,
            max_bytes=int(config.reward.max_message_mb * 2**20 * _FILL),
            wait_s=config.score_wait_ms / 1000,
            size=ScoreItem.ByteSize,
            more_coming=self._generating,
        )
        #: A call has one temperature, and so has each of these.
        self._logprobs: dict[float, Batcher[TokenSequence, TokenFloats]] = {}

    async def run(self, consumer: Consumer[PromptTask]) -> None:
        """Takes prompts as long as it has room for more; those in work at its end are the consumer's to give back."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._watch_services())
                while True:
                    for delivery in await consumer.fetch(await self._room(), _FETCH_S):
                        self._groups += 1
                        tasks.create_task(self._handle(delivery))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            await asyncio.gather(self._score.close(), *(batcher.close() for batcher in self._logprobs.values()))

    async def _room(self) -> int:
        """How many more groups may be in work, once that is at least one."""
        while self._groups >= self._config.concurrency:
            self._freed.clear()
            await self._freed.wait()
        return self._config.concurrency - self._groups

    async def _handle(self, delivery: Delivery[PromptTask]) -> None:
        try:
            await self._answer(delivery)
        finally:
            self._groups -= 1
            self._freed.set()

    async def _answer(self, delivery: Delivery[PromptTask]) -> None:
        task = delivery.message
        if not await self._bus.is_open(task.id):
            log.info("prompt group %s has its rollout already", group_key(task.id))
            metrics.GROUPS.labels("skipped").inc()
            await delivery.ack()
            return
        group = await self._make(task)
        with self._phase("store"):
            group = await self._store(group)
        await delivery.ack()
        self._count(group)

    async def _make(self, task: PromptTask) -> RolloutGroup:
        """A complete group, or one that says why it cannot be made."""
        group = RolloutGroup(task=task, worker=self._name, started_unix_s=time.time())
        begin = time.monotonic()
        try:
            with self._phase("generate"):
                response = await self._insist("generation", lambda: self._call_generate(task))
            generated = time.monotonic()
            with self._phase("score"):
                scores, references = await self._judge(task, response)
        except MisconfiguredError:
            raise
        except RlctlError as error:
            log.warning("prompt group %s cannot be answered: %s", group_key(task.id), error.message)
            return failed_group(task, error.message, self._name)
        group.generate_seconds = generated - begin
        group.score_seconds = time.monotonic() - generated
        group.samples.extend(map(scored_sample, response.samples, scores, references))
        return group

    async def _call_generate(self, task: PromptTask) -> GenerateResponse:
        response = await self._generation.generate(generate_request(task), timeout_s=self._config.generate_timeout_s)
        check_samples(task, response)
        return response

    async def _judge(
        self, task: PromptTask, response: GenerateResponse
    ) -> tuple[list[ItemScore], list[TokenFloats | None]]:
        """Rewards and reference log-probs of all samples, at the same time."""
        scores, references = await asyncio.gather(
            self._rewards(task, response), self._references(task, response), return_exceptions=True
        )
        if isinstance(scores, BaseException):
            raise scores
        if isinstance(references, BaseException):
            raise references
        return scores, references

    async def _rewards(self, task: PromptTask, response: GenerateResponse) -> list[ItemScore]:
        try:
            return await self._score.submit(score_items(task, response.samples))
        except MisconfiguredError:
            raise
        except RlctlError as error:
            failed = ItemScore(error=ItemError(reason=error.reason, message=error.message))
            return [failed] * len(response.samples)

    async def _references(self, task: PromptTask, response: GenerateResponse) -> list[TokenFloats | None]:
        """One entry a sample; None where none is wanted, or the response is empty."""
        found: list[TokenFloats | None] = [None] * len(response.samples)
        if task.needs_reference:
            asked = [index for index, sample in enumerate(response.samples) if sample.token_ids]
            batcher = self._reference_batcher(temperature(task))
            answers = await batcher.submit(sequences(task, [response.samples[index] for index in asked]))
            for index, answer in zip(asked, answers, strict=True):
                found[index] = answer
        return found

    def _reference_batcher(self, temperature: float) -> Batcher[TokenSequence, TokenFloats]:
        if temperature not in self._logprobs:

            async def call(items: list[TokenSequence]) -> list[TokenFloats]:
                request = ComputeLogprobsRequest(sequences=items, temperature=temperature)
                timeout_s = self._config.score_timeout_s
                response = await self._insist(
                    "reference", lambda: self._reference.compute_logprobs(request, timeout_s=timeout_s)
                )
                return list(response.logprobs)

            self._logprobs[temperature] = Batcher(
                call,
                max_items=self._config.score_batch,
                max_bytes=int(self._config.reference.max_message_mb * 2**20 * _FILL),
                wait_s=self._config.score_wait_ms / 1000,
                size=sequence_bytes,
                more_coming=self._generating,
            )
        return self._logprobs[temperature]

    async def _call_score(self, items: list[ScoreItem]) -> list[ItemScore]:
        request = ScoreRequest(items=items)

        async def score() -> list[ItemScore]:
            scores = (await self._reward.score(request, timeout_s=self._config.score_timeout_s)).scores
            check_reached(scores)
            return list(scores)

        return await self._insist("reward", score)

    async def _insist(self, service: str, call: Callable[[], Awaitable[T]]) -> T:
        self._calls[service] += 1
        try:
            return await insist(service, call)
        finally:
            self._calls[service] -= 1

    def _generating(self) -> bool:
        """Whether another group may soon want to share a scoring call."""
        return self._in_phase["generate"] > 0

    async def _store(self, group: RolloutGroup) -> RolloutGroup:
        """Stores the group, or in its place one that says that it is too large; returns what was stored."""

        async def store(message: RolloutGroup) -> None:
            new = await self._bus.publish_rollout(message)
            log.log(
                logging.DEBUG if new else logging.INFO,
                "prompt group %s is stored%s",
                group_key(message.task.id),
                "" if new else " since before",
            )

        try:
            await insist("the rollouts queue", lambda: store(group))
        except ResourceExhaustedError as error:
            log.warning("%s", error.message)
            group = failed_group(group.task, error.message, self._name)
            await insist("the rollouts queue", lambda: store(group))
        return group

    @contextmanager
    def _phase(self, phase: str) -> Iterator[None]:
        self._in_phase[phase] += 1
        metrics.IN_WORK.labels(phase).inc()
        begin = time.monotonic()
        try:
            yield
        finally:
            self._in_phase[phase] -= 1
            metrics.IN_WORK.labels(phase).dec()
            metrics.SECONDS.labels(phase).observe(time.monotonic() - begin)

    def _count(self, group: RolloutGroup) -> None:
        metrics.GROUPS.labels("failed" if group.error else "stored").inc()
        metrics.SAMPLES.inc(len(group.samples))
        metrics.TOKENS.inc(sum(len(sample.sample.token_ids) for sample in group.samples))
        metrics.REWARD_ERRORS.inc(sum(not sample.HasField("reward") for sample in group.samples))

    async def _watch_services(self) -> None:
        """Says for whom groups wait: a pool waits within a call's deadline, which may be long."""
        silent: Counter[str] = Counter()
        while True:
            await asyncio.sleep(_SAY_EVERY_S)
            for service, pool in self._pools.items():
                if not self._calls[service] or any(one.serving for one in pool.instances()):
                    silent[service] = 0
                    continue
                silent[service] += 1
                log.warning(
                    "%d calls wait for the %s service, of which no replica serves (for about %.0f s now)",
                    self._calls[service],
                    service,
                    silent[service] * _SAY_EVERY_S,
                )
