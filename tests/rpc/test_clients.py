from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from rlctl.clients import blocking
from rlctl.clients.critic import CriticClient
from rlctl.clients.generation import GenerationClient
from rlctl.clients.requests import split, with_request_id
from rlctl.clients.weights import WeightsClient
from rlctl.core.errors import (
    ConfigError,
    DataLossError,
    DeadlineError,
    FencedError,
    InvalidArgumentError,
    ResourceExhaustedError,
    UnavailableError,
)
from rlctl.rpc.config import ChannelConfig, ServerConfig
from rlctl.rpc.portal import Portal
from rlctl.rpc.service import Health, RunningService, start
from rlctl.v1 import critic_pb2, generation_pb2, reward_pb2, weights_pb2
from rlctl.v1.critic_pb2_grpc import CriticServiceServicer, add_CriticServiceServicer_to_server
from rlctl.v1.generation_pb2_grpc import GenerationServiceServicer, add_GenerationServiceServicer_to_server
from rlctl.v1.tensor_pb2 import TokenSequence
from rlctl.v1.weights_pb2_grpc import WeightsServiceServicer, add_WeightsServiceServicer_to_server
from support.scoring import LengthService

pytestmark = pytest.mark.anyio


class Everything(GenerationServiceServicer, CriticServiceServicer, WeightsServiceServicer):
    """Generation that repeats its prompt, a critic that counts, and a weights service that checks indices."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.sequences = 0
        self.streams_cancelled = 0

    def register(self, server: grpc.aio.Server) -> list[str]:
        add_GenerationServiceServicer_to_server(self, server)
        add_CriticServiceServicer_to_server(self, server)
        add_WeightsServiceServicer_to_server(self, server)
        return [f"rlctl.v1.{name}Service" for name in ("Generation", "Critic", "Weights")]

    async def load(self, health: Health) -> None:
        pass

    async def close(self) -> None:
        pass

    async def Generate(self, request: generation_pb2.GenerateRequest, context: Any) -> generation_pb2.GenerateResponse:
        assert request.request_id
        if not request.WhichOneof("prompt"):
            raise InvalidArgumentError("prompt: none is given", field="prompt")
        text = request.text or "|".join(f"{turn.role}:{turn.content}" for turn in request.chat.messages)
        samples = [generation_pb2.Sample(text=text.upper()) for _ in range(request.sampling.n or 1)]
        return generation_pb2.GenerateResponse(samples=samples)

    async def GenerateStream(
        self, request: generation_pb2.GenerateStreamRequest, context: Any
    ) -> AsyncIterator[generation_pb2.GenerateStreamResponse]:
        try:
            for word in request.request.text.split():
                if word == "wait":
                    await asyncio.sleep(60)
                if word == "fail":
                    raise UnavailableError("the engine is restarting")
                yield generation_pb2.GenerateStreamResponse(delta=generation_pb2.Sample(text=word + " "))
        except asyncio.CancelledError:
            self.streams_cancelled += 1
            raise

    async def Train(self, request_iterator: Any, context: Any) -> critic_pb2.TrainResponse:
        async for request in request_iterator:
            self.parts.append(request.WhichOneof("part"))
            self.sequences += len(request.sequences.sequences)
            if request.header.epoch == 1:
                raise FencedError("epoch 2 owns the run")
            if request.header.epoch == 3:
                raise UnavailableError("the critic is going back to a checkpoint")
        return critic_pb2.TrainResponse(metrics={"value_loss": float(self.sequences)})

    async def Update(self, request_iterator: Any, context: Any) -> AsyncIterator[weights_pb2.UpdateResponse]:
        loaded = 0
        async for request in request_iterator:
            if request.WhichOneof("part") == "bucket":
                if request.bucket.index != loaded:
                    raise DataLossError(f"bucket {request.bucket.index} came instead of {loaded}")
                loaded += 1
            yield weights_pb2.UpdateResponse(buckets_loaded=loaded, loaded=request.HasField("close"))


@pytest.fixture
async def everything(serve) -> tuple[Everything, str]:
    hosted = Everything()
    return hosted, (await serve(hosted)).address


@pytest.fixture
def threaded():  # type: ignore[no-untyped-def]
    """A hosted `Everything` on a loop of its own, for synchronous clients."""
    with Portal() as portal:
        hosted = Everything()
        service: RunningService = portal.call(start, "generation", ServerConfig(metrics_listen=None), hosted)
        yield hosted, service.address
        portal.call(service.stop)


async def test_text_and_chats_are_generated_from(everything, connect) -> None:
    client = GenerationClient(connect(everything[1]))
    assert await client.generate_text("two words", generation_pb2.SamplingParams(n=2)) == ["TWO WORDS"] * 2
    assert await client.generate_text([("system", "be brief"), ("user", "hi")]) == ["SYSTEM:BE BRIEF|USER:HI"]
    with pytest.raises(InvalidArgumentError, match="prompt"):
        await client.generate(generation_pb2.GenerateRequest())


async def test_a_stream_comes_piece_by_piece_and_ends_on_both_sides(everything, connect) -> None:
    hosted, address = everything
    client = GenerationClient(connect(address))
    assert [piece async for piece in client.stream_text("a b c")] == ["a ", "b ", "c "]
    async with aclosing(client.stream_text("first wait")) as stream:
        async for piece in stream:
            assert piece == "first "
            break
    async with asyncio.timeout(5):
        while hosted.streams_cancelled == 0:
            await asyncio.sleep(0.01)


async def test_a_stream_that_began_is_not_begun_again(everything, connect) -> None:
    client = GenerationClient(connect(everything[1]))
    stream = client.stream_text("once fail")
    assert await anext(stream) == "once "
    with pytest.raises(UnavailableError, match="engine is restarting"):
        await anext(stream)
    with pytest.raises(DeadlineError, match="engine is restarting"):
        await anext(client.stream_text("fail", timeout_s=0.5))


def sequence(tokens: int) -> critic_pb2.TrainSequence:
    ids = [100_000] * tokens
    return critic_pb2.TrainSequence(tokens=TokenSequence(prompt_ids=[1], response_ids=ids), returns=[0.5] * tokens)


async def test_a_training_batch_over_the_message_limit_is_sent_in_parts(everything, connect) -> None:
    hosted, address = everything
    client = CriticClient(connect(address, max_message_mb=20))
    batch = [sequence(500_000)] * 10
    assert sum(one.ByteSize() for one in batch) > 2 * (20 << 20) - (8 << 20)
    response = await client.train(critic_pb2.TrainHeader(epoch=2, num_sequences=10), batch)
    assert response.metrics["value_loss"] == 10
    assert hosted.parts[0] == "header"
    assert hosted.parts[1:] == ["sequences"] * 3


async def test_parts_keep_to_a_smaller_message_limit(everything, connect) -> None:
    hosted, address = everything
    client = CriticClient(connect(address, max_message_mb=1))
    await client.train(critic_pb2.TrainHeader(epoch=2, num_sequences=4), [sequence(100_000)] * 4)
    assert hosted.parts == ["header", *["sequences"] * 4]
    with pytest.raises(ResourceExhaustedError, match="item 0 takes"):
        await client.train(critic_pb2.TrainHeader(epoch=2, num_sequences=1), [sequence(200_000)])


async def test_training_is_refused_or_fails_once_only(everything, connect) -> None:
    hosted, address = everything
    client = CriticClient(connect(address))
    with pytest.raises(FencedError, match="epoch 2 owns the run"):
        await client.train(critic_pb2.TrainHeader(epoch=1), [sequence(10)])
    with pytest.raises(UnavailableError, match="going back"):
        await client.train(critic_pb2.TrainHeader(epoch=3), [sequence(10)])
    assert hosted.parts.count("header") == 2


def test_items_are_split_in_order_and_an_item_too_large_is_told() -> None:
    batch = [reward_pb2.ScoreItem(prompt="x" * size) for size in (8, 8, 23, 0, 28)]
    assert [one.ByteSize() for one in batch] == [10, 10, 25, 0, 30]
    parts = list(split(batch, 36))
    assert [[one.ByteSize() for one in part] for part in parts] == [[10, 10], [25], [0], [30]]
    assert [one for part in parts for one in part] == batch
    assert [len(part) for part in split(batch, 200)] == [5]
    assert all(reward_pb2.ScoreRequest(items=part).ByteSize() <= 36 for part in parts)
    with pytest.raises(ResourceExhaustedError, match="item 2 takes 31 bytes; a message holds 30 at most"):
        list(split(batch, 30))


def test_a_request_id_is_given_once() -> None:
    request = generation_pb2.GenerateRequest(text="x", request_id="mine")
    assert with_request_id(request) is request
    fresh = with_request_id(generation_pb2.GenerateRequest(text="x"))
    assert len(fresh.request_id) == 32
    assert fresh.text == "x"


async def test_an_update_is_written_and_read_in_step(everything) -> None:
    client = WeightsClient(everything[1], ChannelConfig())
    stream = await client.update(timeout_s=20)
    await stream.write(weights_pb2.UpdateRequest(open=weights_pb2.OpenUpdate(policy_version=3)))
    assert (await stream.read()).buckets_loaded == 0
    for index in range(3):
        await stream.write(weights_pb2.UpdateRequest(bucket=weights_pb2.Bucket(index=index)))
        assert (await stream.read()).buckets_loaded == index + 1
    await stream.write(weights_pb2.UpdateRequest(close=weights_pb2.CloseUpdate(num_buckets=3)))
    assert (await stream.read()).loaded
    await stream.done_writing()
    assert await stream.read() is None
    await client.close()


async def test_an_update_that_the_replica_ends_tells_why_to_reader_and_writer(everything) -> None:
    client = WeightsClient(everything[1], ChannelConfig())
    stream = await client.update(timeout_s=20)
    wrong = weights_pb2.UpdateRequest(bucket=weights_pb2.Bucket(index=5))
    await stream.write(wrong)
    with pytest.raises(DataLossError, match="bucket 5 came instead of 0"):
        await stream.read()
    with pytest.raises(DataLossError, match="bucket 5 came instead of 0"):
        await stream.write(wrong)
    stream.cancel()
    await client.close()


async def test_an_update_of_a_replica_that_is_silent_or_gone_ends_in_time(everything) -> None:
    client = WeightsClient(everything[1], ChannelConfig())
    stream = await client.update(timeout_s=0.3)
    with pytest.raises(DeadlineError, match=r"WeightsService/Update: generation at .* did not answer within 0\.3 s"):
        await stream.read()
    await client.close()
    gone = WeightsClient("127.0.0.1:1", ChannelConfig())
    with pytest.raises(UnavailableError, match=r"cannot reach generation at 127\.0\.0\.1:1"):
        await gone.join_group(weights_pb2.JoinGroupRequest(), timeout_s=5)
    await gone.close()


def test_blocking_clients_do_the_same_without_await(threaded) -> None:
    _, address = threaded
    config = ChannelConfig(addresses=[address], timeout_s=20)
    with blocking.GenerationClient(config) as client:
        client.ready(timeout_s=20)
        assert client.generate_text("hello") == ["HELLO"]
        assert list(client.stream_text("a b")) == ["a ", "b "]
        with pytest.raises(InvalidArgumentError, match="prompt"):
            client.generate(generation_pb2.GenerateRequest())
        stream = client.stream_text("a wait")
        assert next(stream) == "a "
        stream.close()
    with blocking.CriticClient(config) as critic:
        header = critic_pb2.TrainHeader(epoch=2, num_sequences=1)
        assert critic.train(header, [sequence(3)]).metrics["value_loss"] == 1
    names = {thread.name for thread in threading.enumerate()}
    assert not names & {"rlctl-generation", "rlctl-critic"}


def test_a_blocking_client_with_nowhere_to_look_leaves_no_thread() -> None:
    with pytest.raises(ConfigError, match="no addresses"):
        blocking.RewardClient(ChannelConfig())
    assert "rlctl-reward" not in {thread.name for thread in threading.enumerate()}


def test_blocking_clients_offer_every_method_of_the_others() -> None:
    from rlctl.clients import critic, evaluator, generation, reference, reward, trainer

    for module in (critic, evaluator, generation, reference, reward, trainer):
        name = f"{module.__name__.rpartition('.')[2].capitalize()}Client"
        theirs = {method for method in vars(getattr(module, name)) if not method.startswith("_")}
        ours = {method for method in vars(getattr(blocking, name)) if not method.startswith("_")}
        assert theirs == ours - {"service", "kind"}


PROGRAM = """
import json, sys
sys.path[:0] = {path!r}

class Refuse:
    heavy = ("torch", "transformers", "vllm", "deepspeed", "ray", "numpy", "nats", "prometheus_client")
    tried = []
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.heavy[:5]:
            raise ImportError(name + " is not installed here")

sys.meta_path.insert(0, Refuse())
import rlctl.clients.blocking
from rlctl.clients.blocking import GenerationClient, RewardClient
from rlctl.rpc.config import ChannelConfig
imported = sorted(set(sys.modules) & set(Refuse.heavy))
texts, rewards = [], []
with GenerationClient(ChannelConfig(addresses=[{generation!r}], timeout_s=60)) as client:
    texts = client.generate_text("made without torch")
with RewardClient(ChannelConfig(addresses=[{reward!r}], timeout_s=60)) as client:
    rewards = [score.reward for score in client.score_text(["2 + 2 = "], texts)]
print(json.dumps([imported, texts, rewards, sorted(set(sys.modules) & set(Refuse.heavy[:5]))]))
"""


async def test_a_program_without_torch_generates_and_scores_text(everything, serve) -> None:
    reward = await serve(LengthService())
    path = [str(Path(__file__).parents[2] / name) for name in ("protos", "services")]
    program = PROGRAM.format(path=path, generation=everything[1], reward=reward.address)
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    imported, texts, rewards, heavy = json.loads(done.stdout.splitlines()[-1])
    assert imported == []
    assert heavy == []
    assert (texts, rewards) == (["MADE WITHOUT TORCH"], [18.0])
