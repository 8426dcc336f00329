"""The rollout worker between a real queue and real gRPC servers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from rlctl.core.errors import (
    AuthenticationError,
    InternalError,
    InvalidArgumentError,
    ResourceExhaustedError,
    UnavailableError,
)
from rlctl.v1.generation_pb2 import FINISH_REASON_ABORT, FINISH_REASON_STOP
from rlctl.v1.reward_pb2 import ItemError, ItemScore
from support.groups import Connect, collect, group_id, rollout, task
from support.rollout_services import Generation
from support.worker_stage import Stage, failing, until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def stage(connect: Connect) -> AsyncIterator[Stage]:
    async with AsyncExitStack() as stack:
        stage = Stage(await connect(), stack)
        for name in ("generation", "reward", "reference"):
            await stage.serve(name)
        yield stage


async def test_a_prompt_becomes_one_complete_group(stage: Stage) -> None:
    await stage.work()
    wanted = task(5, n=3, needs_reference=True)
    await stage.ask(wanted)
    [group] = await stage.groups(1)
    assert group.task == wanted
    assert group.error == ""
    assert group.worker
    assert group.started_unix_s > 1e9
    assert [sample.sample.text for sample in group.samples] == ["8:0", "8:1", "8:2"]
    assert list(group.samples[2].sample.token_ids) == [8, 12]
    assert list(group.samples[2].sample.logprobs) == [-0.5, -0.5]
    assert list(group.samples[2].sample.policy_versions) == [7]
    assert group.samples[0].reward == 5.0
    assert dict(group.samples[0].reward_components) == {"label": 5.0}
    assert not group.samples[1].HasField("reward")
    assert group.samples[1].reward_error == "REWARD_RAISED: no ones"
    assert list(group.samples[2].reference_logprobs) == pytest.approx([-8 / 0.7, -12 / 0.7])
    [request] = stage.generation.calls
    assert request.request_id == "my_run.1/0/5/0"
    assert list(request.tokens.ids) == list(wanted.prompt_ids)
    assert request.sampling == wanted.sampling
    assert request.return_logprobs
    [scored] = stage.reward.calls
    assert scored.items[0].prompt == "prompt 5"
    assert scored.items[0].metadata_json == '{"row": 5}'
    assert not await stage.bus.prompt_exists(group_id(5))


async def test_without_a_reference_none_is_asked(stage: Stage) -> None:
    await stage.work()
    await stage.ask(task(0))
    [group] = await stage.groups(1)
    assert stage.reference.calls == []
    assert list(group.samples[0].reference_logprobs) == []


async def test_a_step_costs_one_generate_call_a_group_and_few_scoring_calls(stage: Stage) -> None:
    released = asyncio.Event()

    async def together(request: Any) -> None:
        await released.wait()

    stage.generation.before = together
    await stage.work()
    await stage.ask(*(task(prompt, n=8, needs_reference=True) for prompt in range(32)))
    await until(lambda: len(stage.generation.calls) == 32)
    released.set()
    groups = await stage.groups(32)
    assert [group.task.id.prompt for group in groups] == list(range(32))
    assert [group.samples[0].reward for group in groups] == [float(prompt) for prompt in range(32)]
    assert len(stage.generation.calls) == 32
    assert sum(len(call.items) for call in stage.reward.calls) == 256
    assert len(stage.reward.calls) <= 8
    assert len(stage.reference.calls) <= 8


async def test_a_prompt_whose_rollout_exists_is_settled_without_generating(stage: Stage) -> None:
    await stage.ask(task(1))
    assert await stage.bus.publish_rollout(rollout(1, worker="another"))
    await stage.work()
    [group] = await stage.groups(1)
    assert group.worker == "another"
    async with asyncio.timeout(10.0):
        while await stage.bus.prompt_exists(group_id(1)):
            await asyncio.sleep(0.02)
    assert stage.generation.calls == []


async def test_an_invalid_prompt_becomes_a_group_with_its_error(stage: Stage) -> None:
    stage.generation.before = failing(1, InvalidArgumentError("tokens: 600 tokens; the model takes 512"))
    await stage.work(concurrency=1)
    await stage.ask(task(1), task(2))
    bad, good = await stage.groups(2)
    assert bad.error == "tokens: 600 tokens; the model takes 512"
    assert bad.task.id == group_id(1)
    assert len(bad.samples) == 0
    assert good.error == ""
    assert len(good.samples) == 2


async def test_a_refused_scoring_call_costs_the_rewards_of_its_own_group_only(stage: Stage) -> None:
    async def before(request: Any) -> None:
        if any(item.label == "1" for item in request.items):
            raise InvalidArgumentError("items: no")

    stage.reward.before = before
    await stage.work(score_wait_ms=200.0)
    await stage.ask(task(1), task(2))
    bad, good = await stage.groups(2)
    assert [sample.reward_error for sample in bad.samples] == ["INVALID_ARGUMENT: items: no"] * 2
    assert [sample.sample.text for sample in bad.samples] == ["4:0", "4:1"]
    assert good.samples[0].reward == 2.0


@pytest.mark.parametrize("service", ["generation", "reward", "reference"])
@pytest.mark.parametrize(
    "error",
    [
        UnavailableError("going away"),
        ResourceExhaustedError("too many calls", reason="TOO_MANY_CALLS"),
        InternalError("a defect that passes"),
    ],
)
async def test_passing_errors_are_waited_out(stage: Stage, service: str, error: Exception) -> None:
    getattr(stage, service).before = failing(2, error)
    await stage.work()
    await stage.ask(task(2, needs_reference=True))
    [group] = await stage.groups(1)
    assert group.error == ""
    assert group.samples[0].reward == 2.0
    assert len(getattr(stage, service).calls) == 3


async def test_a_defect_that_stays_becomes_the_groups_error(stage: Stage) -> None:
    stage.generation.before = failing(100, InternalError("broken"))
    await stage.work()
    await stage.ask(task(1))
    [group] = await stage.groups(1)
    assert "broken" in group.error
    assert len(stage.generation.calls) == 3


async def test_aborted_samples_are_generated_again(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    reasons = iter([FINISH_REASON_ABORT])
    original = Generation.Generate

    async def aborting(self: Generation, request: Any, context: Any) -> Any:
        response = await original(self, request, context)
        response.samples[1].finish_reason = next(reasons, FINISH_REASON_STOP)
        return response

    monkeypatch.setattr(Generation, "Generate", aborting)
    await stage.running["generation"].stop()
    await stage.serve("generation")
    await stage.work()
    await stage.ask(task(1))
    [group] = await stage.groups(1)
    assert len(stage.generation.calls) == 2
    assert group.samples[1].sample.finish_reason == FINISH_REASON_STOP


async def test_a_service_that_is_away_is_waited_for_while_the_prompt_is_kept(
    stage: Stage, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    stage.bus = await connect(ack_wait_s=1.8)
    address = stage.running["reward"].address
    await stage.running["reward"].stop()
    await stage.work(score_timeout_s=0.5)
    with caplog.at_level(logging.WARNING, logger="rlctl.rollout"):
        await stage.ask(task(1))
        other = await (await connect(ack_wait_s=1.8)).prompt_consumer()
        await until(lambda: "waiting for reward" in caplog.text)
        assert await other.fetch(1, 4.0) == [], "the prompt is renewed although its worker waits"
    await stage.serve("reward", address)
    [group] = await stage.groups(1)
    assert group.samples[0].reward == 1.0
    assert len(stage.generation.calls) == 1, "what was generated is not generated again"


async def test_a_remote_reward_that_cannot_be_reached_is_waited_for(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    gone = ItemScore(error=ItemError(reason="REWARD_UNREACHABLE", message="cannot reach http://far/away"))
    stage.reward.answer = gone
    await stage.work(score_timeout_s=0.5)
    with caplog.at_level(logging.WARNING, logger="rlctl.rollout"):
        await stage.ask(task(1))
        await until(lambda: "waiting for reward since 0 s: cannot reach http://far/away" in caplog.text)
    stage.reward.answer = None
    [group] = await stage.groups(1)
    assert group.samples[0].reward == 1.0
    assert len(stage.generation.calls) == 1
    assert len(stage.reward.calls) > 1


async def test_a_group_over_the_message_limit_becomes_a_group_that_says_so(stage: Stage, connect: Connect) -> None:
    async def chatty(self: Generation, request: Any, context: Any) -> Any:
        response = await Generation.Generate(self, request, context)
        for sample in response.samples:
            sample.text = "x" * 700_000
        return response

    stage.bus = await connect(max_payload_mb=1)
    stage.generation.Generate = chatty.__get__(stage.generation)  # type: ignore[method-assign]
    await stage.running["generation"].stop()
    await stage.serve("generation")
    await stage.work()
    await stage.ask(task(1))
    [group] = await stage.groups(1)
    assert "a message may have 1,048,576" in group.error
    assert group.task.id == group_id(1)
    assert len(group.samples) == 0


async def test_a_full_rollout_queue_is_waited_for(stage: Stage, connect: Connect) -> None:
    stage.bus = await connect(max_groups=1)
    await stage.bus.publish_rollout(rollout(99))
    await stage.work()
    await stage.ask(task(1))
    await until(lambda: len(stage.generation.calls) == 1)
    await asyncio.sleep(0.5)
    assert [group.task.id.prompt for group in await stage.groups(2)] == [1, 99]


async def test_a_worker_that_may_not_call_ends_and_gives_its_prompts_back(stage: Stage) -> None:
    stage.generation.before = failing(100, AuthenticationError("a bearer token is needed"))
    worker = await stage.work()
    await stage.ask(task(1))
    with pytest.raises(Exception, match="generation: a bearer token is needed"):
        async with asyncio.timeout(15.0):
            await worker.watch()
    await worker.close()
    assert await stage.bus.prompt_exists(group_id(1))


async def test_closing_cancels_the_calls_and_gives_the_prompts_back_at_once(stage: Stage) -> None:
    async def forever(request: Any) -> None:
        await asyncio.sleep(60)

    stage.generation.before = forever
    worker = await stage.work()
    await stage.ask(task(1), task(2))
    await until(lambda: len(stage.generation.calls) == 2)
    async with asyncio.timeout(5.0):
        await worker.close()
    await until(lambda: stage.generation.cancelled == 2)
    other = await stage.bus.prompt_consumer()
    got = await collect(other, 2)
    assert [delivery.redelivered for delivery in got] == [True, True]


async def test_several_workers_share_the_prompts(stage: Stage) -> None:
    async def slow(request: Any) -> None:
        await asyncio.sleep(0.3)

    stage.generation.before = slow
    for _ in range(2):
        await stage.work(concurrency=2)
    await stage.ask(*(task(prompt) for prompt in range(8)))
    groups = await stage.groups(8)
    assert [group.task.id.prompt for group in groups] == list(range(8))
    assert len(stage.generation.calls) == 8
