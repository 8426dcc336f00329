"""Prompt groups for tests of the bus and the rollout worker."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

from rlctl.bus.bus import Bus
from rlctl.bus.consumer import Consumer, Delivery, M
from rlctl.v1.generation_pb2 import SamplingParams
from rlctl.v1.rollout_pb2 import GroupId, PromptTask, RolloutGroup

RUN = "my_run.1"

#: Connects a bus to the test's server; keywords are settings.
Connect = Callable[..., Awaitable[Bus]]


def group_id(prompt: int, *, attempt: int = 0) -> GroupId:
    return GroupId(run=RUN, epoch=0, prompt=prompt, attempt=attempt)


def task(prompt: int, *, attempt: int = 0, n: int = 2, needs_reference: bool = False) -> PromptTask:
    return PromptTask(
        id=group_id(prompt, attempt=attempt),
        prompt_ids=[1, 2, 3 + prompt % 7],
        prompt=f"prompt {prompt}",
        label=str(prompt),
        metadata_json=json.dumps({"row": prompt}),
        sampling=SamplingParams(n=n, temperature=0.7, max_tokens=4),
        needs_reference=needs_reference,
    )


def rollout(prompt: int, *, attempt: int = 0, worker: str = "w") -> RolloutGroup:
    return RolloutGroup(task=task(prompt, attempt=attempt), worker=worker)


async def collect(consumer: Consumer[M], count: int, timeout_s: float = 5.0) -> list[Delivery[M]]:
    """So many deliveries, from as many fetches as it takes; fewer when nothing comes for `timeout_s`."""
    got: list[Delivery[M]] = []
    while len(got) < count and (more := await consumer.fetch(count - len(got), timeout_s)):
        got += more
    return got
