"""The critic over a real server, one rank in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rlctl.clients.critic import CriticClient
from rlctl.core.errors import DataLossError, FailedPreconditionError, FencedError, InvalidArgumentError, NotFoundError
from rlctl.critic.config import CriticConfig
from rlctl.critic.servicer import CriticHosted
from rlctl.rpc.config import ChannelConfig, ServerConfig
from rlctl.rpc.pool import Pool
from rlctl.rpc.service import RunningService, start
from rlctl.v1 import critic_pb2 as pb
from rlctl.v1.tensor_pb2 import TokenSequence
from support.tiny import tiny_llama

pytestmark = pytest.mark.anyio

SEQUENCES = [([1, 20, 21], [30, 31, 2]), ([1], [44, 2]), ([1, 9, 9, 9], [12])]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("critic"))


async def begin(model: Path, folder: Path) -> tuple[RunningService, CriticClient]:
    learner = {"dtype": "float32", "optimizer": {"lr": 1e-2}, "micro_batch_tokens": 64}
    tree = {"model": str(model), "checkpoint_dir": str(folder), "learner": learner}
    service = await start("critic", ServerConfig(metrics_listen=None), CriticHosted(CriticConfig.model_validate(tree)))
    return service, CriticClient(Pool("critic", ChannelConfig(addresses=[service.address], timeout_s=60)))


@pytest.fixture
async def client(model: Path, tmp_path: Path) -> AsyncIterator[CriticClient]:
    service, critic = await begin(model, tmp_path / "critic")
    yield critic
    await critic.pool.close()
    await service.stop()


def tokens() -> list[TokenSequence]:
    return [TokenSequence(prompt_ids=prompt, response_ids=response) for prompt, response in SEQUENCES]


async def values(client: CriticClient, epoch: int = 1) -> list[list[float]]:
    answer = await client.compute_values(pb.ComputeValuesRequest(epoch=epoch, sequences=tokens()))
    return [list(one.values) for one in answer.values]


async def train(client: CriticClient, step: int, minibatch: int = 0, epoch: int = 1, **header: Any) -> dict[str, float]:
    sequences = [
        pb.TrainSequence(
            tokens=one, mask=[1] * len(one.response_ids), old_values=[0.0] * len(one.response_ids),
            returns=[1.0] * len(one.response_ids),
        )
        for one in tokens()
    ]  # fmt: skip
    fields = {"epoch": epoch, "step": step, "minibatch": minibatch, "num_sequences": len(sequences)} | header
    return dict((await client.train(pb.TrainHeader(**fields), sequences)).metrics)


async def restore(client: CriticClient, tag: str = "", epoch: int = 1) -> None:
    await client.load_checkpoint(pb.LoadCheckpointRequest(epoch=epoch, tag=tag))


async def save(client: CriticClient, tag: str, keep: list[str] | None = None, epoch: int = 1) -> None:
    await client.save_checkpoint(pb.SaveCheckpointRequest(epoch=epoch, tag=tag, keep=keep or []))


async def test_values_begin_at_zero_and_learn_the_returns(client: CriticClient) -> None:
    await restore(client)
    assert await values(client) == [[0.0] * 3, [0.0] * 2, [0.0]]
    first = await train(client, 0)
    assert first["value_loss"] == pytest.approx(0.5)
    assert first["value_mean"] == 0.0
    assert first["value_clip_fraction"] == 0.0
    assert first["grad_norm"] > 0
    for step in range(1, 8):
        last = await train(client, step)
    # all values are above the clip at 0.2 by now: 0.5 * (0.2 - 1)^2
    assert last["value_loss"] == pytest.approx(0.32)
    assert last["value_mean"] > 0.2
    assert last["value_clip_fraction"] == 1.0


async def test_a_step_already_taken_is_answered_from_memory(client: CriticClient) -> None:
    await restore(client)
    first = await train(client, 0, 0)
    second = await train(client, 0, 1)
    before = await values(client)
    assert await train(client, 0, 0) == first
    assert await train(client, 0, 1) == second
    assert await values(client) == before
    await train(client, 1, 0)
    assert await values(client) != before


async def test_steps_go_forward_only(client: CriticClient) -> None:
    await restore(client)
    await train(client, 5)
    with pytest.raises(FailedPreconditionError) as caught:
        await train(client, 4)
    assert caught.value.reason == "OUT_OF_ORDER"


async def test_going_back_to_a_tag_gives_the_same_future(client: CriticClient) -> None:
    await restore(client)
    await train(client, 0)
    await save(client, "step-1")
    saved = await values(client)
    later = [await train(client, step) for step in (1, 2)]
    end = await values(client)
    await restore(client, "step-1", epoch=2)
    assert await values(client, epoch=2) == saved
    assert [await train(client, step, epoch=2) for step in (1, 2)] == later
    assert await values(client, epoch=2) == end
    await restore(client, "", epoch=3)
    assert await values(client, epoch=3) == [[0.0] * 3, [0.0] * 2, [0.0]]


async def test_tags_not_kept_are_deleted_and_missing_ones_named(client: CriticClient, tmp_path: Path) -> None:
    await restore(client)
    await save(client, "a")
    await save(client, "b", keep=["a"])
    await save(client, "c", keep=["b"])
    assert sorted(path.name for path in (tmp_path / "critic").iterdir() if path.is_dir()) == ["b", "c"]
    with pytest.raises(NotFoundError, match="b, c"):
        await restore(client, "a")


async def test_a_damaged_checkpoint_is_refused_before_it_is_opened(client: CriticClient, tmp_path: Path) -> None:
    await restore(client)
    await save(client, "a")
    victim = next((tmp_path / "critic" / "a").rglob("*.pt"))
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    with pytest.raises(DataLossError, match=victim.name):
        await restore(client, "a")
    assert await values(client) == [[0.0] * 3, [0.0] * 2, [0.0]]


async def test_a_lower_epoch_is_fenced_even_by_a_critic_started_again(model: Path, tmp_path: Path) -> None:
    for epoch in (4, 5):
        service, client = await begin(model, tmp_path / "critic")
        await restore(client, epoch=epoch)
        calls = [values(client, 3), train(client, 0, epoch=3), save(client, "a", epoch=3), restore(client, epoch=3)]
        for result in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(result, FencedError)
        await client.pool.close()
        await service.stop()


async def test_a_critic_started_again_wants_to_be_told_where_to_begin(client: CriticClient) -> None:
    for call in (values(client), train(client, 0), save(client, "a")):
        with pytest.raises(FailedPreconditionError) as caught:
            await call
        assert caught.value.reason == "NOT_RESTORED"


async def test_bad_input_names_its_field(client: CriticClient) -> None:
    await restore(client)

    async def refused(field: str, header: dict[str, int], **changes: Any) -> None:
        fields = {"tokens": tokens()[0], "mask": [1, 1, 1], "old_values": [0.0] * 3, "returns": [1.0] * 3} | changes
        with pytest.raises(InvalidArgumentError) as caught:
            await client.train(pb.TrainHeader(epoch=1, **header), [pb.TrainSequence(**fields)])
        assert caught.value.metadata["field"] == field

    one = {"num_sequences": 1}
    await refused("header.num_sequences", {"num_sequences": 2})
    await refused("sequences[0].mask", one, mask=[1, 1])
    await refused("sequences[0].mask", one, mask=[1, 2, 1])
    await refused("sequences[0].returns", one, returns=[1.0, float("nan"), 1.0])
    await refused("sequences[0].old_values", one, old_values=[])
    await refused("sequences[0].tokens.prompt_ids", one, tokens=TokenSequence(response_ids=[1, 2, 3]))
    await refused("sequences.mask", one, mask=[0, 0, 0])
    with pytest.raises(InvalidArgumentError, match="tag"):
        await save(client, "../evil")
    assert (await train(client, 0))["value_loss"] == pytest.approx(0.5)
