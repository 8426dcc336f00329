"""The two work queues: what is stored once, who gets it, and what happens when it is not settled."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest

from rlctl.bus.ids import group_subject
from rlctl.core.errors import FencedError, InvalidArgumentError, NotFoundError, ResourceExhaustedError
from rlctl.v1.rollout_pb2 import GroupId, PromptTask
from support.groups import Connect, collect, group_id, rollout, task

pytestmark = pytest.mark.anyio


async def test_an_id_is_stored_once(connect: Connect) -> None:
    bus = await connect()
    assert await bus.publish_prompt(task(1)) is True
    assert await bus.publish_prompt(task(1)) is False
    assert await bus.publish_prompt(task(1, attempt=1)) is True
    consumer = await bus.prompt_consumer()
    got = await collect(consumer, 2)
    assert [delivery.message.id.attempt for delivery in got] == [0, 1]
    assert [delivery.redelivered for delivery in got] == [False, False]
    assert got[0].data == task(1).SerializeToString()


async def test_an_id_whose_message_was_acknowledged_is_still_a_duplicate(connect: Connect) -> None:
    bus = await connect()
    await bus.publish_prompt(task(1))
    consumer = await bus.prompt_consumer()
    [delivery] = await consumer.fetch(1, 2.0)
    await delivery.ack_sync()
    assert await bus.publish_prompt(task(1)) is False
    assert await consumer.fetch(1, 0.2) == []


async def test_existence_follows_a_group_through_the_queues(connect: Connect) -> None:
    bus = await connect()
    assert not await bus.prompt_exists(group_id(1))
    await bus.publish_prompt(task(1))
    assert await bus.is_open(group_id(1))
    prompts, rollouts = await bus.prompt_consumer(), await bus.rollout_consumer(epoch=1, max_ack_pending=8)
    [prompt] = await prompts.fetch(1, 2.0)
    assert await bus.prompt_exists(group_id(1)), "a prompt in work exists until it is acknowledged"
    await bus.publish_rollout(rollout(1))
    assert await bus.rollout_exists(group_id(1))
    assert not await bus.is_open(group_id(1)), "a prompt whose rollout is stored wants no answer"
    await prompt.ack_sync()
    assert not await bus.prompt_exists(group_id(1))
    [group] = await rollouts.fetch(1, 2.0)
    await group.ack_sync()
    assert not await bus.rollout_exists(group_id(1))


async def test_many_questions_at_once_are_answered_each(connect: Connect) -> None:
    bus = await connect()
    for prompt in (1, 3, 5):
        await bus.publish_prompt(task(prompt))
    answers = await asyncio.gather(*(bus.prompt_exists(group_id(prompt)) for prompt in range(7)))
    assert answers == [False, True, False, True, False, True, False]


async def test_a_taken_rollout_takes_its_unacknowledged_prompt_along(connect: Connect) -> None:
    """Its worker died after the rollout was stored and before it could acknowledge the prompt."""
    bus = await connect(ack_wait_s=1.5)
    await bus.publish_prompt(task(1))
    worker = await connect(ack_wait_s=1.5)
    [prompt] = await (await worker.prompt_consumer()).fetch(1, 2.0)
    await worker.publish_rollout(rollout(1))
    await worker.connection.close()
    [group] = await (await bus.rollout_consumer(epoch=1, max_ack_pending=8)).fetch(1, 2.0)
    await group.ack_sync()
    assert not await bus.prompt_exists(group_id(1))
    assert not await bus.is_open(prompt.message.id), "another worker that fetched it before must not answer it"
    assert await (await bus.prompt_consumer()).fetch(1, 3.0) == []


async def test_fetch_returns_at_once_with_what_there_is(connect: Connect) -> None:
    bus = await connect()
    for prompt in range(3):
        await bus.publish_prompt(task(prompt))
    consumer = await bus.prompt_consumer()
    begin = time.monotonic()
    got = await consumer.fetch(32, 5.0)
    got += await collect(consumer, 3 - len(got))
    assert len(got) == 3
    assert time.monotonic() - begin < 1.0


async def test_fetch_returns_as_soon_as_something_comes(connect: Connect) -> None:
    bus = await connect()
    consumer = await bus.prompt_consumer()
    waiting = asyncio.create_task(consumer.fetch(32, 10.0))
    await asyncio.sleep(0.3)
    begin = time.monotonic()
    await bus.publish_prompt(task(1))
    assert len(await waiting) == 1
    assert time.monotonic() - begin < 1.0


async def test_fetch_ends_empty_after_its_time(connect: Connect) -> None:
    consumer = await (await connect()).prompt_consumer()
    begin = time.monotonic()
    assert await consumer.fetch(4, 0.4) == []
    assert 0.35 < time.monotonic() - begin < 1.0


async def test_a_worker_gets_no_more_than_it_asked_for(connect: Connect) -> None:
    bus = await connect()
    for prompt in range(6):
        await bus.publish_prompt(task(prompt))
    one, two = await (await connect()).prompt_consumer(), await (await connect()).prompt_consumer()
    first = [len(await collect(one, 2)) for _ in range(2)]
    assert first == [2, 2]
    assert len(await collect(two, 2)) == 2, "what nobody has asked for stays with the broker"


async def test_an_early_return_leaves_no_hole_in_what_was_asked(connect: Connect) -> None:
    """A fetch of 4 that returns with one message still stands for 3 more, and never for more than that."""
    bus = await connect()
    consumer = await bus.prompt_consumer()
    await bus.publish_prompt(task(0))
    assert len(await consumer.fetch(4, 2.0)) == 1
    for prompt in range(1, 8):
        await bus.publish_prompt(task(prompt))
    other = await (await connect()).prompt_consumer()
    assert len(await collect(consumer, 3)) == 3
    assert len(await collect(other, 4)) == 4


async def test_work_longer_than_ack_wait_is_renewed_and_goes_to_nobody_else(connect: Connect) -> None:
    bus = await connect(ack_wait_s=1.8)
    await bus.publish_prompt(task(1))
    mine, other = await bus.prompt_consumer(), await (await connect(ack_wait_s=1.8)).prompt_consumer()
    [delivery] = await mine.fetch(1, 2.0)
    assert await other.fetch(1, 4.0) == []
    await delivery.ack_sync()
    assert not await bus.prompt_exists(group_id(1))


async def test_work_of_a_dead_worker_goes_to_another(connect: Connect) -> None:
    bus = await connect(ack_wait_s=1.1)
    await bus.publish_prompt(task(1))
    dead = await connect(ack_wait_s=1.1)
    await (await dead.prompt_consumer()).fetch(1, 2.0)
    await dead.connection.close()
    [delivery] = await (await bus.prompt_consumer()).fetch(1, 5.0)
    assert delivery.redelivered


async def test_nak_gives_a_message_back_at_once_or_later(connect: Connect) -> None:
    bus = await connect()
    await bus.publish_prompt(task(1))
    consumer = await bus.prompt_consumer()
    [first] = await consumer.fetch(1, 2.0)
    await first.nak()
    [second] = await consumer.fetch(1, 2.0)
    assert second.redelivered
    await second.nak(delay_s=1.0)
    assert await consumer.fetch(1, 0.5) == []
    assert len(await consumer.fetch(1, 2.0)) == 1


async def test_closing_gives_back_what_is_not_settled(connect: Connect) -> None:
    bus = await connect()
    for prompt in range(3):
        await bus.publish_prompt(task(prompt))
    leaving = await connect()
    assert len(await collect(await leaving.prompt_consumer(), 2)) == 2
    await leaving.close()
    got = await collect(await bus.prompt_consumer(), 3)
    assert sorted(delivery.message.id.prompt for delivery in got) == [0, 1, 2]


async def test_settling_twice_does_nothing_more(connect: Connect) -> None:
    bus = await connect()
    await bus.publish_prompt(task(1))
    consumer = await bus.prompt_consumer()
    [delivery] = await consumer.fetch(1, 2.0)
    await delivery.ack_sync()
    await delivery.ack_sync()
    await delivery.nak()
    assert await consumer.fetch(1, 0.3) == []


async def test_a_newer_trainer_takes_unacknowledged_rollouts_over_at_once(connect: Connect) -> None:
    bus = await connect()
    for prompt in range(3):
        await bus.publish_rollout(rollout(prompt))
    old = await (await connect()).rollout_consumer(epoch=1, max_ack_pending=8)
    [first, *_] = await collect(old, 3)
    await first.ack_sync()
    begin = time.monotonic()
    new = await bus.rollout_consumer(epoch=2, max_ack_pending=8)
    got = await collect(new, 2)
    assert sorted(delivery.message.task.id.prompt for delivery in got) == [1, 2]
    assert time.monotonic() - begin < 2.0, "not only when ack_wait (20 s) is over"
    with pytest.raises(FencedError, match=r"epoch 2; this one has 1"):
        await old.fetch(1, 5.0)
    with pytest.raises(FencedError, match="newer trainer"):
        await bus.rollout_consumer(epoch=1, max_ack_pending=8)


async def test_the_trainer_holds_no_more_groups_than_it_said(connect: Connect) -> None:
    bus = await connect()
    for prompt in range(5):
        await bus.publish_rollout(rollout(prompt))
    consumer = await bus.rollout_consumer(epoch=1, max_ack_pending=3)
    got = await collect(consumer, 3)
    assert len(got) == 3
    assert await consumer.fetch(5, 0.3) == []
    await got[0].ack_sync()
    assert len(await consumer.fetch(5, 2.0)) == 1


async def test_a_message_over_the_limit_is_refused_with_the_limit(connect: Connect) -> None:
    bus = await connect(max_payload_mb=1)
    large = rollout(1)
    large.task.prompt = "x" * (1024 * 1024)
    with pytest.raises(
        ResourceExhaustedError, match=r"a message may have 1,048,576: lower .* bus.max_payload_mb"
    ) as info:
        await bus.publish_rollout(large)
    assert info.value.reason == "MESSAGE_TOO_LARGE"
    large.task.prompt = "x" * (1024 * 1024 - 200)
    assert len(large.SerializeToString()) <= 1024 * 1024
    assert await bus.publish_rollout(large), "up to the limit it is stored, and the connection lives on"


async def test_the_largest_messages_of_a_whole_step_arrive(connect: Connect) -> None:
    bus = await connect()
    for prompt in range(12):
        group = rollout(prompt)
        group.task.prompt = "x" * (8 * 1024 * 1024 - 200)
        assert await bus.publish_rollout(group)
    consumer = await bus.rollout_consumer(epoch=1, max_ack_pending=32)
    got = await collect(consumer, 12, 20.0)
    prompts = [delivery.message.task.id.prompt for delivery in got]
    assert sorted(prompts) == list(range(12))


async def test_a_full_stream_refuses_and_keeps_what_it_has(connect: Connect) -> None:
    bus = await connect(max_groups=2)
    await bus.publish_prompt(task(1))
    await bus.publish_prompt(task(2))
    with pytest.raises(ResourceExhaustedError, match=r"prompts stream of run 'my_run.1' is full \(2 groups\)"):
        await bus.publish_prompt(task(3))
    assert len(await collect(await bus.prompt_consumer(), 3, 1.0)) == 2


async def test_limits_of_existing_streams_are_changed(connect: Connect) -> None:
    bus = await connect(max_groups=1)
    await bus.publish_prompt(task(1))
    wider = await connect(max_groups=2)
    assert await wider.publish_prompt(task(2))


async def test_unreadable_messages_are_thrown_away_loudly(connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    bus = await connect()
    subject = group_subject(group_id(1), "prompts")
    await bus.connection.request(subject, b"\xff\xff\xff no protobuf")
    await bus.connection.request(subject, task(2).SerializeToString())
    await bus.publish_prompt(task(3))
    consumer = await bus.prompt_consumer()
    with caplog.at_level(logging.ERROR, logger="rlctl.bus"):
        got = await consumer.fetch(3, 2.0)
        got += await consumer.fetch(3, 0.5)
    assert [delivery.message.id.prompt for delivery in got] == [3]
    assert caplog.text.count("was thrown away") == 2
    assert "does not belong to subject" in caplog.text
    assert not await bus.prompt_exists(group_id(1))


async def test_a_group_of_another_run_is_refused(connect: Connect) -> None:
    bus = await connect()
    with pytest.raises(InvalidArgumentError, match=r"is not of run 'my_run.1'"):
        await bus.publish_prompt(PromptTask(id=GroupId(run="other", prompt=1)))


async def test_missing_streams_are_named(connect: Connect) -> None:
    bus = await connect()
    for queue in ("prompts", "rollouts"):
        await bus.connection.api(f"STREAM.DELETE.rlctl-my__run_d1-{queue}")
    with pytest.raises(NotFoundError, match="has no stream 'rlctl-my__run_d1-prompts'"):
        await bus.prompt_exists(group_id(1))
    with pytest.raises(NotFoundError, match="rollouts"):
        await bus.rollout_consumer(1, 8)
    with pytest.raises(NotFoundError, match="start the run's trainer"):
        await bus.publish_prompt(task(1))
