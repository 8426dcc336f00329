from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from rlctl.bus.config import BusConfig
from rlctl.bus.server import NatsServer
from rlctl.clients.reward import RewardClient
from rlctl.core.errors import ConfigError, NotFoundError, UnavailableError
from rlctl.core.ports import free_port
from rlctl.rpc.config import ServerConfig
from rlctl.rpc.service import RunningService, _serve, start
from rlctl.v1.reward_pb2_grpc import RewardServiceStub
from support.scoring import SERVICE, LengthService, items

pytestmark = pytest.mark.anyio

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def health(address: str, service: str = "") -> int:
    async with grpc.aio.insecure_channel(address) as channel:
        request = health_pb2.HealthCheckRequest(service=service)
        return (await health_pb2_grpc.HealthStub(channel).Check(request, timeout=10)).status


async def test_serving_only_once_loaded(connect) -> None:
    hosted = LengthService(hold_load=True)
    service = RunningService("reward", ServerConfig(metrics_listen=None), hosted)
    try:
        await service.bind()
        loading = asyncio.create_task(service.load())
        await hosted.loading.wait()
        for name in ("", SERVICE):
            assert await health(service.address, name) == NOT_SERVING
        async with grpc.aio.insecure_channel(service.address) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await RewardServiceStub(channel).Score(items("x"))
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert caught.value.details() == "reward is still loading"
        client = RewardClient(connect(service.address))
        early = asyncio.create_task(client.score(items("x")))
        await asyncio.sleep(0.1)
        hosted.loaded.set()
        await loading
        for name in ("", SERVICE):
            assert await health(service.address, name) == SERVING
        assert (await early).scores[0].reward == 3
        assert hosted.servicer.calls == 1
    finally:
        await service.stop()


async def test_a_service_may_be_loaded_and_not_serve(connect) -> None:
    class Empty(LengthService):
        async def load(self, health) -> None:  # type: ignore[no-untyped-def]
            await health.set_serving(False, policy_version="0")

    service = await start("reward", ServerConfig(metrics_listen=None), Empty())
    try:
        assert await health(service.address) == NOT_SERVING
        async with grpc.aio.insecure_channel(service.address) as channel:
            assert (await RewardServiceStub(channel).Score(items("x"))).scores[0].reward == 3
        await service.health.set_serving(True, policy_version="1")
        assert await health(service.address) == SERVING
        assert service.health.extra == {"policy_version": "1"}
    finally:
        await service.stop()


async def test_reflection_lists_and_describes_the_services(serve) -> None:
    service = await serve(LengthService())
    async with grpc.aio.insecure_channel(service.address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        requests = [
            reflection_pb2.ServerReflectionRequest(list_services=""),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE),
        ]
        answers = [answer async for answer in stub.ServerReflectionInfo(iter(requests), timeout=10)]
    assert {one.name for one in answers[0].list_services_response.service} == {
        SERVICE,
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    }
    described = FileDescriptorProto.FromString(answers[1].file_descriptor_response.file_descriptor_proto[0])
    assert [method.name for method in described.service[0].method] == ["Score", "GetRewardInfo"]


async def test_reflection_needs_the_token_and_health_does_not(serve, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("s3cret")
    service = await serve(LengthService(), token_file=file)
    assert await health(service.address) == SERVING
    async with grpc.aio.insecure_channel(service.address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            _ = [answer async for answer in stub.ServerReflectionInfo(iter([request]), timeout=10)]
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        metadata = (("authorization", "Bearer s3cret"),)
        answers = [a async for a in stub.ServerReflectionInfo(iter([request]), timeout=10, metadata=metadata)]
        assert answers


async def test_a_busy_port_is_told_with_the_mend(serve) -> None:
    first = await serve(LengthService(), metrics_listen="127.0.0.1:0")
    with pytest.raises(ConfigError, match=r"listen: cannot listen on .* Free it or name another"):
        await serve(LengthService(), listen=first.address)
    with pytest.raises(ConfigError, match=r"metrics_listen: cannot listen on .* free the port"):
        await serve(LengthService(), metrics_listen=first.metrics_address)


async def test_a_failed_load_leaves_nothing_behind() -> None:
    hosted = LengthService(load_error=NotFoundError("no model at ./nowhere; name a folder"))
    listen = f"127.0.0.1:{free_port()}"
    config = ServerConfig(listen=listen, metrics_listen=None)
    with pytest.raises(NotFoundError, match="no model"):
        await start("reward", config, hosted)
    assert hosted.closed == 1
    again = await start("reward", config, LengthService())
    await again.stop()


async def test_stop_lets_calls_in_flight_finish_and_takes_no_more(serve, connect) -> None:
    hosted = LengthService()
    service = await serve(hosted, drain_s=10.0)
    client = RewardClient(connect(service.address))
    call = asyncio.create_task(client.score(items("wait")))
    await hosted.servicer.waiting.wait()
    stopping = asyncio.create_task(service.stop())
    await asyncio.sleep(0.1)
    assert not stopping.done()
    assert await health(service.address) == NOT_SERVING
    async with grpc.aio.insecure_channel(service.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await RewardServiceStub(channel).Score(items("x"))
        assert caught.value.details() == "reward is shutting down"
    assert hosted.closed == 0
    hosted.servicer.release.set()
    assert (await call).scores[0].reward == 3
    await stopping
    assert hosted.closed == 1
    assert hosted.servicer.cancelled == 0


async def test_stop_cuts_off_what_does_not_finish(serve, connect) -> None:
    hosted = LengthService()
    service = await serve(hosted, drain_s=0.2)
    client = RewardClient(connect(service.address))
    call = asyncio.create_task(client.pool.call(*_score("wait")))
    await hosted.servicer.waiting.wait()
    begin = time.monotonic()
    await service.stop()
    assert time.monotonic() - begin < 5
    assert hosted.cancelled_at_close == 1
    with pytest.raises(UnavailableError):
        await call


async def test_the_metrics_page_shows_calls(serve, connect) -> None:
    service = await serve(LengthService(), metrics_listen="127.0.0.1:0")
    await RewardClient(connect(service.address)).get_reward_info()
    url = f"http://{service.metrics_address}/metrics"
    text = (await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=10).read())).decode()
    assert 'rlctl_rpc_calls_total{code="OK",method="GetRewardInfo",service="RewardService"}' in text
    assert "process_resident_memory_bytes" in text


PROGRAM = """
import asyncio, sys, time
sys.path[:0] = {path!r}
from support.scoring import LengthService
from rlctl.rpc.config import ServerConfig
from rlctl.rpc.service import run

class Slow(LengthService):
    async def load(self, health):
        print("loading", flush=True)
        if {mode!r} == "stuck":
            await asyncio.to_thread(time.sleep, 60)
        await super().load(health)

    async def close(self):
        print("closed", flush=True)

config = ServerConfig(listen={listen!r}, metrics_listen=None, drain_s=1)
sys.exit(run("reward", config, Slow()))
"""


@pytest.fixture
def spawn(tmp_path: Path):  # type: ignore[no-untyped-def]
    """Runs a reward service in a process of its own; returns it and its address."""
    processes: list[subprocess.Popen[str]] = []

    def begin(mode: str, listen: str | None = None) -> tuple[subprocess.Popen[str], str]:
        address = listen or f"127.0.0.1:{free_port()}"
        path = [entry for entry in sys.path if entry]
        program = PROGRAM.format(path=path, mode=mode, listen=address)
        process = subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        processes.append(process)
        return process, address

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


async def test_sigterm_drains_and_exits_with_0(spawn, connect) -> None:
    process, address = spawn("plain")
    client = RewardClient(connect(address, timeout_s=60.0))
    await client.score(items("x"))
    with pytest.raises(UnavailableError):
        # The waiting call is in flight when the signal comes and is cut off after drain_s.
        await asyncio.gather(client.pool.call(*_score("wait")), _signal(process))
    out, err = await asyncio.to_thread(process.communicate, timeout=30)
    assert process.returncode == 0, err
    assert out.split() == ["loading", "closed"]
    assert "reward was asked to end" in err
    assert "1 calls were cut off after 1 s" in err
    assert "Traceback" not in err


async def test_sigterm_during_a_load_that_cannot_be_cancelled_ends_at_once(spawn) -> None:
    process, _ = spawn("stuck")
    assert await asyncio.to_thread(process.stdout.readline) == "loading\n"
    begin = time.monotonic()
    process.send_signal(signal.SIGTERM)
    out, err = await asyncio.to_thread(process.communicate, timeout=30)
    assert time.monotonic() - begin < 10
    assert (process.returncode, out) == (0, "closed\n"), err


async def test_a_bad_setting_ends_the_process_with_2_and_words(spawn) -> None:
    process, _ = spawn("plain", listen="0.0.0.0:0")
    _, err = await asyncio.to_thread(process.communicate, timeout=30)
    assert process.returncode == 2
    assert "ERROR reward: listen: '0.0.0.0:0' can be reached from outside this machine, so it needs TLS" in err
    assert "Traceback" not in err


async def test_a_killed_process_costs_a_safe_call_nothing(spawn, connect) -> None:
    process, address = spawn("plain")
    client = RewardClient(connect(address, timeout_s=60.0))
    await client.score(items("x"))
    call = asyncio.create_task(client.score(items("wait")))
    await asyncio.sleep(0.3)
    process.kill()
    await asyncio.to_thread(process.wait, timeout=10)
    assert not call.done()
    hosted = LengthService()
    hosted.servicer.release.set()
    again = await start("reward", ServerConfig(listen=address, metrics_listen=None), hosted)
    assert (await call).scores[0].reward == 3
    assert hosted.servicer.calls == 1
    await again.stop()


async def test_a_service_that_lost_nats_for_good_ends_with_1(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = NatsServer(tmp_path / "nats")
    registry = BusConfig(url=server.start())
    hosted = LengthService()
    service = RunningService("reward", ServerConfig(metrics_listen=None, registry=registry), hosted)
    try:
        serving = asyncio.create_task(_serve(service, threading.Event()))
        async with asyncio.timeout(20):
            while not service.health.serving:
                await asyncio.sleep(0.01)
        # The server ends connections that break its protocol; this one is a message over its hard limit.
        assert service._bus is not None
        await service._bus.connection._nats._send_command(b"PUB x 999999999\r\n")
        await service._bus.connection._nats._flush_pending()
        monkeypatch.setattr(logging.getLogger("rlctl"), "propagate", True)
        assert await asyncio.wait_for(serving, 20) == 1
    finally:
        server.stop()
    assert hosted.closed == 1
    assert "the connection to NATS is lost for good; start the service again" in caplog.text


async def _signal(process: subprocess.Popen[str]) -> None:
    await asyncio.sleep(0.5)
    os.kill(process.pid, signal.SIGTERM)


def _score(prompt: str):  # type: ignore[no-untyped-def]
    """A Score call that is not tried again."""
    return RewardServiceStub, "Score", items(prompt)
