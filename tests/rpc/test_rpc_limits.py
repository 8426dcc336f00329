from __future__ import annotations

import asyncio
import time

import grpc
import grpc.aio
import pytest

from rlctl.clients.reward import RewardClient
from rlctl.core.errors import DeadlineError, ResourceExhaustedError, RlctlError
from rlctl.rpc.metrics import CALLS, IN_FLIGHT, SECONDS
from rlctl.v1 import reward_pb2 as pb
from rlctl.v1.reward_pb2_grpc import RewardServiceStub
from support.scoring import LengthService, items

pytestmark = pytest.mark.anyio

MIB = 1 << 20


async def test_an_oversized_request_is_refused_before_it_is_sent(serve, connect) -> None:
    hosted = LengthService()
    service = await serve(hosted)
    client = RewardClient(connect(service.address, max_message_mb=1))
    with pytest.raises(ResourceExhaustedError) as caught:
        await client.score(items("x", response="a" * 2 * MIB))
    assert caught.value.message.startswith(
        "RewardService/Score: the request takes 2 MiB; the limit is 1 MiB. Send less"
    )
    assert caught.value.reason == "MESSAGE_TOO_LARGE"
    assert hosted.servicer.calls == 0
    assert (await client.score(items("x", response="a" * (MIB - 100)))).scores[0].reward == MIB - 100


async def test_an_oversized_request_is_refused_by_the_server_too(serve, connect) -> None:
    hosted = LengthService()
    service = await serve(hosted, max_message_mb=1)
    client = RewardClient(connect(service.address, max_message_mb=8))
    with pytest.raises(ResourceExhaustedError, match="the limit is 1 MiB"):
        await client.score(items("x", response="a" * 2 * MIB))
    assert hosted.servicer.calls == 0
    assert (await client.score(items("x"))).scores[0].reward == 3


async def test_an_oversized_answer_is_refused_with_the_limit_in_words(serve, connect) -> None:
    service = await serve(LengthService(), max_message_mb=1)
    client = RewardClient(connect(service.address))
    with pytest.raises(ResourceExhaustedError, match=r"the answer takes 2 MiB; the limit is 1 MiB"):
        await client.score(items(f"big {2 * MIB}"))


async def test_an_answer_over_the_callers_limit_is_told_in_words(serve, connect) -> None:
    service = await serve(LengthService())
    client = RewardClient(connect(service.address, max_message_mb=1))
    with pytest.raises(ResourceExhaustedError, match="the limit is 1 MiB"):
        await client.score(items(f"big {2 * MIB}"))


async def test_calls_over_the_concurrency_limit_are_refused(serve) -> None:
    hosted = LengthService()
    service = await serve(hosted, max_concurrency=2)
    async with grpc.aio.insecure_channel(service.address) as channel:
        stub = RewardServiceStub(channel)
        held = [asyncio.ensure_future(stub.Score(items("wait"))) for _ in range(2)]
        await _until(lambda: hosted.servicer.calls == 2)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Score(items("x"))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "works on 2 calls, its limit" in (caught.value.details() or "")
        hosted.servicer.release.set()
        await asyncio.gather(*held)
        assert (await stub.Score(items("x"))).scores[0].reward == 3


async def test_a_pool_waits_for_a_place_at_a_busy_server(serve, connect) -> None:
    hosted = LengthService()
    service = await serve(hosted, max_concurrency=1)
    client = RewardClient(connect(service.address))
    held = asyncio.create_task(client.score(items("wait")))
    await hosted.servicer.waiting.wait()
    waiting = asyncio.create_task(client.score(items("x")))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    with pytest.raises(DeadlineError, match="works on 1 calls, its limit"):
        await client.score(items("x"), timeout_s=0.3)
    hosted.servicer.release.set()
    assert (await waiting).scores[0].reward == 3
    await held


async def test_the_callers_deadline_ends_the_call_on_both_sides(serve, connect) -> None:
    hosted = LengthService()
    service = await serve(hosted)
    client = RewardClient(connect(service.address))
    await client.pool.ready()
    begin = time.monotonic()
    with pytest.raises(DeadlineError, match=r"RewardService/Score: reward at 127\.0\.0\.1:\d+ did not answer"):
        await client.score(items("wait"), timeout_s=0.3)
    assert time.monotonic() - begin < 2
    await _until(lambda: hosted.servicer.cancelled == 1)


async def test_a_call_without_a_deadline_gets_the_servers(serve) -> None:
    hosted = LengthService()
    service = await serve(hosted, call_timeout_s=0.2)
    async with grpc.aio.insecure_channel(service.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await RewardServiceStub(channel).Score(items("wait"))
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "took longer than 0.2 s" in (caught.value.details() or "")
        assert hosted.servicer.cancelled == 1
        begin = asyncio.get_running_loop().call_later(0.4, hosted.servicer.release.set)
        assert (await RewardServiceStub(channel).Score(items("wait"), timeout=10)).scores[0].reward == 3
        begin.cancel()


async def test_cancelling_reaches_the_servicer(serve, connect) -> None:
    hosted = LengthService()
    service = await serve(hosted)
    client = RewardClient(connect(service.address))
    call = asyncio.create_task(client.score(items("wait")))
    await hosted.servicer.waiting.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await _until(lambda: hosted.servicer.cancelled == 1)
    assert hosted.servicer.calls == 1


async def test_calls_are_counted_by_code_and_timed(serve, connect) -> None:
    def count(code: str) -> float:
        return CALLS.labels("RewardService", "Score", code)._value.get()

    hosted = LengthService()
    service = await serve(hosted)
    client = RewardClient(connect(service.address))
    before = {code: count(code) for code in ("OK", "NOT_FOUND", "INTERNAL", "CANCELLED")}
    seconds = SECONDS.labels("RewardService", "Score")._sum.get()
    await client.score(items("x"))
    for prompt in ("raise NotFoundError", "crash"):
        with pytest.raises(RlctlError):
            await client.score(items(prompt))
    call = asyncio.create_task(client.score(items("wait")))
    await hosted.servicer.waiting.wait()
    assert IN_FLIGHT.labels("RewardService", "Score")._value.get() == 1
    await asyncio.sleep(0.1)
    call.cancel()
    await _until(lambda: hosted.servicer.cancelled == 1)
    await _until(lambda: IN_FLIGHT.labels("RewardService", "Score")._value.get() == 0)
    assert {code: count(code) - before[code] for code in before} == dict.fromkeys(before, 1)
    assert SECONDS.labels("RewardService", "Score")._sum.get() - seconds >= 0.1


async def test_the_request_id_is_filled_in_and_kept(serve, connect) -> None:
    hosted = LengthService()
    service = await serve(hosted)
    client = RewardClient(connect(service.address))
    request = items("x")
    await client.score(request)
    await client.score(request)
    await client.score(pb.ScoreRequest(request_id="mine"))
    first, second, third = hosted.servicer.request_ids
    assert len(first) == 32
    assert first != second
    assert third == "mine"
    assert request.request_id == ""


async def _until(condition) -> None:  # type: ignore[no-untyped-def]
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.01)
