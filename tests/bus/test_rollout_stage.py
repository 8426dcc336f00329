"""The trainer's end of the bus against a real JetStream server: order, crashes, duplicates, the ledger."""

from __future__ import annotations

import asyncio

import pytest

from rlctl.bus.bus import Bus
from rlctl.bus.config import BusConfig
from rlctl.bus.ids import group_key
from rlctl.bus.server import NatsServer
from rlctl.data.cursor import PromptCursor
from rlctl.data.prompts import Prompt, PromptDataset
from rlctl.trainer.config import TrainerConfig
from rlctl.trainer.journal import Journal
from rlctl.trainer.progress import Progress
from rlctl.trainer.rollouts import REISSUED, RolloutStage
from rlctl.v1 import generation_pb2, rollout_pb2

GROUPS = 4


@pytest.fixture
def url(tmp_path):
    server = NatsServer(tmp_path / "nats")
    yield server.start()
    server.stop()


def config(url: str) -> TrainerConfig:
    return TrainerConfig(
        run="r",
        bus=BusConfig(url=url, run="r"),
        sampling={"prompts_per_step": GROUPS, "n": 2},
        advantage={"estimator": "rloo"},
        kl={"coef": 0},
    )


def prompts(count: int = 10) -> PromptDataset:
    return PromptDataset([Prompt([index], f"p{index}", str(index)) for index in range(count)], {})


async def open_stage(settings, tmp_path, epoch: int):
    """A trainer's stage as after a (re)start: the progress comes from the journal."""
    bus = await Bus.connect(settings.bus, "trainer")
    await bus.create_streams()
    consumer = await bus.rollout_consumer(epoch, 2 * GROUPS)
    journal = Journal(tmp_path / "journal")
    progress = Progress(PromptCursor(10, False, 0), 0.0)
    for step in journal.steps():
        records = journal.read(step)
        progress.cursor.take(sum(task.id.attempt == 0 for task in records.issued))
        progress.ledger.apply(records)
    return bus, RolloutStage(settings, bus, consumer, journal, progress, prompts()), progress


def answered(task: rollout_pb2.PromptTask, rewards: tuple[float | None, ...] = (1.0, 0.0)) -> rollout_pb2.RolloutGroup:
    group = rollout_pb2.RolloutGroup(task=task, worker="w")
    for reward in rewards:
        sample = group.samples.add(
            sample=generation_pb2.Sample(token_ids=[5, 6], logprobs=[-1, -2], policy_versions=[1])
        )
        if reward is None:
            sample.reward_error = "the function raised"
        else:
            sample.reward = reward
    return group


async def answer_all(settings, answers=answered, order=reversed) -> int:
    """A worker: takes what waits, publishes in another order than it came, acks."""
    bus = await Bus.connect(settings.bus, "worker")
    consumer = await bus.prompt_consumer()
    taken = []
    while len(taken) < GROUPS and (some := await consumer.fetch(GROUPS, 1.0)):
        taken.extend(some)
    for delivery in order(taken):
        await bus.publish_rollout(answers(delivery.message))
        await delivery.ack_sync()
    await bus.close()
    return len(taken)


async def complete(stage: RolloutStage) -> None:
    async with asyncio.timeout(20):
        while not await stage.collect(0.5):
            pass


def test_a_step_is_trained_in_cursor_order_whatever_the_order_of_arrival(url, tmp_path):
    async def scenario():
        bus, stage, progress = await open_stage(config(url), tmp_path, 1)
        await stage.issue(0)
        assert progress.ledger.counts() == {"issued": 4, "trained": 0, "dropped": 0, "pending": 4}
        assert await answer_all(config(url)) == GROUPS
        await complete(stage)
        settled, _ = await stage.settle()
        order = [rollout_pb2.RolloutGroup.FromString(data).task.id.prompt for data in settled.groups]
        assert order == [0, 1, 2, 3]
        assert progress.ledger.counts() == {"issued": 4, "trained": 4, "dropped": 0, "pending": 0}
        await bus.close()

    asyncio.run(scenario())


def test_what_was_issued_before_a_crash_is_waited_for_not_issued_again(url, tmp_path):
    async def scenario():
        bus, stage, _ = await open_stage(config(url), tmp_path, 1)
        await stage.issue(0)
        await bus.close()
        await answer_all(config(url))
        bus, stage, progress = await open_stage(config(url), tmp_path, 2)
        await stage.issue(0)
        await complete(stage)
        await stage.settle()
        assert progress.ledger.counts() == {"issued": 4, "trained": 4, "dropped": 0, "pending": 0}
        await bus.close()

    asyncio.run(scenario())


def test_a_group_journalled_but_never_published_is_issued_as_the_next_attempt(url, tmp_path):
    async def scenario():
        bus, stage, _ = await open_stage(config(url), tmp_path, 1)

        async def crash(task):
            if task.id.prompt >= 2:
                await asyncio.sleep(1)  # by then the others are stored
                raise ConnectionError
            return await Bus.publish_prompt(bus, task)

        bus.publish_prompt = crash
        with pytest.raises(ConnectionError):
            await stage.issue(0)
        await bus.close()
        bus, stage, progress = await open_stage(config(url), tmp_path, 2)
        await stage.issue(0)
        await answer_all(config(url))
        await complete(stage)
        settled, _ = await stage.settle()
        ids = [group_key(rollout_pb2.RolloutGroup.FromString(data).task.id) for data in settled.groups]
        assert ids == ["r/0/0/0", "r/0/1/0", "r/0/2/1", "r/0/3/1"]
        assert [(group_key(drop.id), drop.reason) for drop in settled.dropped] == [
            ("r/0/2/0", REISSUED),
            ("r/0/3/0", REISSUED),
        ]
        assert progress.ledger.counts() == {"issued": 6, "trained": 4, "dropped": 2, "pending": 0}
        assert progress.ledger.balanced
        await bus.close()

    asyncio.run(scenario())


def test_a_crash_between_journal_and_ack_trains_nothing_twice(url, tmp_path):
    async def scenario():
        bus, stage, _ = await open_stage(config(url), tmp_path, 1)
        await stage.issue(0)
        await answer_all(config(url))
        await complete(stage)
        for delivery in stage._wanted.arrived.values():
            delivery.ack_sync = asyncio.Event().wait  # the process dies here
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await stage.settle()
        bus, stage, progress = await open_stage(config(url), tmp_path, 2)
        assert progress.ledger.counts() == {"issued": 4, "trained": 4, "dropped": 0, "pending": 0}
        await stage.issue(1)
        await answer_all(config(url))
        await complete(stage)
        settled, _ = await stage.settle()
        assert [rollout_pb2.RolloutGroup.FromString(data).task.id.prompt for data in settled.groups] == [4, 5, 6, 7]
        assert stage.duplicates == 4
        assert progress.ledger.counts() == {"issued": 8, "trained": 8, "dropped": 0, "pending": 0}
        await bus.close()

    asyncio.run(scenario())


def test_groups_that_cannot_be_trained_on_are_dropped_with_their_reason(url, tmp_path):
    def answers(task):
        if task.id.prompt == 0:
            return rollout_pb2.RolloutGroup(task=task, error="prompt too long")
        return answered(task, (1.0, None) if task.id.prompt == 1 else (1.0, 0.0))

    async def scenario():
        bus, stage, progress = await open_stage(config(url), tmp_path, 1)
        await stage.issue(0)
        await answer_all(config(url), answers)
        await complete(stage)
        settled, _ = await stage.settle()
        assert [(drop.id.prompt, drop.reason, drop.message) for drop in settled.dropped] == [
            (0, "GENERATE_FAILED", "prompt too long"),
            (1, "REWARD_FAILED", "the function raised"),
        ]
        assert progress.ledger.counts() == {"issued": 4, "trained": 2, "dropped": 2, "pending": 0}
        await bus.close()

    asyncio.run(scenario())
