from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from rlctl.bus.bus import Bus
from rlctl.bus.config import BusConfig
from rlctl.bus.registry import Registry
from rlctl.bus.server import NatsServer
from rlctl.clients.reward import RewardClient
from rlctl.core.errors import ConfigError, DeadlineError, InvalidArgumentError, UnavailableError
from rlctl.core.ports import free_port
from rlctl.rpc.config import ChannelConfig, ServerConfig
from rlctl.rpc.pool import Pool
from rlctl.rpc.service import RunningService, start
from rlctl.v1.reward_pb2_grpc import RewardServiceStub
from support.scoring import LengthService, items

pytestmark = pytest.mark.anyio


def free_address() -> str:
    return f"127.0.0.1:{free_port()}"


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


async def test_calls_go_where_the_fewest_are_in_flight(serve, connect) -> None:
    hosted = [LengthService() for _ in range(3)]
    pool = connect(*[(await serve(one)).address for one in hosted])
    client = RewardClient(pool)
    await pool.ready(3)
    held = [asyncio.create_task(client.score(items("wait"))) for _ in range(7)]
    await until(lambda: sum(one.servicer.calls for one in hosted) == 7)
    assert sorted(one.servicer.calls for one in hosted) == [2, 2, 3]
    for one in hosted:
        one.servicer.release.set()
    await asyncio.gather(*held)


async def test_calls_one_after_the_other_are_spread_too(serve, connect) -> None:
    hosted = [LengthService() for _ in range(3)]
    pool = connect(*[(await serve(one)).address for one in hosted])
    await pool.ready(3)
    for _ in range(6):
        await RewardClient(pool).score(items("x"))
    assert [one.servicer.calls for one in hosted] == [2, 2, 2]


async def test_a_safe_call_is_tried_again_on_another_replica(serve, connect) -> None:
    bad, good = LengthService(), LengthService()
    pool = connect((await serve(bad)).address, (await serve(good)).address)
    await pool.ready(2)
    bad.servicer._do = _unavailable  # type: ignore[method-assign]
    for _ in range(4):
        assert (await RewardClient(pool).score(items("x"))).scores[0].reward == 3
    assert good.servicer.calls == 4
    assert bad.servicer.calls >= 1
    ids = [bad.servicer.request_ids[0], good.servicer.request_ids[0]]
    assert ids[0] == ids[1] != ""


async def test_a_call_that_may_not_be_repeated_is_sent_once(serve, connect) -> None:
    bad, good = LengthService(), LengthService()
    pool = connect((await serve(bad)).address, (await serve(good)).address)
    await pool.ready(2)
    bad.servicer._do = good.servicer._do = _unavailable  # type: ignore[method-assign]
    with pytest.raises(UnavailableError, match="the reward model is being replaced"):
        await pool.call(RewardServiceStub, "Score", items("x"))
    assert bad.servicer.calls + good.servicer.calls == 1


async def test_other_errors_are_not_tried_again(serve, connect) -> None:
    hosted = [LengthService(), LengthService()]
    pool = connect(*[(await serve(one)).address for one in hosted])
    await pool.ready(2)
    with pytest.raises(InvalidArgumentError):
        await RewardClient(pool).score(items("raise InvalidArgumentError"))
    assert sum(one.servicer.calls for one in hosted) == 1


async def test_a_killed_replica_costs_a_safe_call_nothing(connect) -> None:
    config = ServerConfig(metrics_listen=None, drain_s=0)
    dying, living = LengthService(), LengthService()
    first = await start("reward", config, dying)
    pool = connect(first.address)
    client = RewardClient(pool)
    call = asyncio.create_task(client.score(items("wait")))
    await dying.servicer.waiting.wait()
    await first.stop()
    second = await start("reward", config.model_copy(update={"listen": first.address}), living)
    await living.servicer.waiting.wait()
    living.servicer.release.set()
    assert (await call).scores[0].reward == 3
    await pool.close()
    await second.stop()


async def test_the_deadline_covers_the_wait_for_a_replica(connect) -> None:
    address = free_address()
    pool = connect(address)
    begin = time.monotonic()
    with pytest.raises(DeadlineError) as caught:
        await RewardClient(pool).score(items("x"), timeout_s=0.4)
    assert time.monotonic() - begin < 2
    assert f"Score: no replica of reward took the call within 0.4 s (0 of 1 serve; {address}:" in caught.value.message
    with pytest.raises(DeadlineError, match=r"waited 0\.2 s for 2 replica\(s\) of reward to serve: 0 of 1 serve"):
        await pool.ready(2, timeout_s=0.2)


async def test_a_replica_that_stops_serving_gets_no_calls(serve, connect) -> None:
    hosted = [LengthService(), LengthService()]
    services = [await serve(one) for one in hosted]
    pool = connect(*[service.address for service in services])
    await pool.ready(2)
    await services[0].health.set_serving(False)
    await until(lambda: [one.serving for one in pool.instances()] == [False, True])
    for _ in range(3):
        await RewardClient(pool).score(items("x"))
    assert [one.servicer.calls for one in hosted] == [0, 3]
    await services[0].health.set_serving(True)
    await pool.ready(2, timeout_s=5)


async def test_nowhere_to_look_is_told(connect) -> None:
    with pytest.raises(ConfigError, match="reward: no addresses are given and no registry"):
        Pool("reward", ChannelConfig())
    with pytest.raises(ConfigError, match="is no address"):
        await connect("localhost").ready()


async def test_closing_a_pool_ends_its_calls_with_an_error_of_ours(serve, connect) -> None:
    hosted = LengthService()
    pool = connect((await serve(hosted)).address)
    call = asyncio.create_task(pool.call(RewardServiceStub, "Score", items("wait")))
    safe = asyncio.create_task(RewardClient(pool).score(items("wait")))
    await until(lambda: hosted.servicer.calls == 2)
    ready = asyncio.create_task(pool.ready(2))
    await asyncio.sleep(0)
    begin = time.monotonic()
    await pool.close()
    with pytest.raises(UnavailableError, match="was closed here"):
        await call
    for waiting in (safe, ready):
        with pytest.raises(UnavailableError, match="pool of reward is closed"):
            await waiting
    assert time.monotonic() - begin < 2


async def test_a_closed_pool_says_so(serve, connect) -> None:
    pool = connect((await serve(LengthService())).address)
    await pool.ready()
    await pool.close()
    with pytest.raises(UnavailableError, match="pool of reward is closed"):
        await RewardClient(pool).score(items("x"))


@pytest.fixture
def nats(tmp_path: Path):  # type: ignore[no-untyped-def]
    server = NatsServer(tmp_path / "nats")
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def registered(nats: NatsServer) -> AsyncIterator[Callable[..., object]]:
    """Starts services that announce themselves."""
    running: list[RunningService] = []

    async def begin(hosted: LengthService, **settings: object) -> RunningService:
        bus = BusConfig(url=nats.url, run="pool", registry_ttl_s=2.0)
        config = ServerConfig.model_validate({"metrics_listen": None, "drain_s": 1, "registry": bus, **settings})
        running.append(await start("reward", config, hosted))
        return running[-1]

    yield begin
    for service in running:
        await service.stop()


@pytest.fixture
async def registry(nats: NatsServer) -> AsyncIterator[Registry]:
    bus = await Bus.connect(BusConfig(url=nats.url, run="pool", registry_ttl_s=2.0), "test")
    yield Registry(bus)
    await bus.close()


async def test_replicas_are_found_in_the_registry_as_they_come_and_go(registered, registry: Registry) -> None:
    async with Pool("reward", ChannelConfig(timeout_s=10), registry) as pool:
        waiting = asyncio.create_task(pool.ready(2, timeout_s=20))
        with pytest.raises(DeadlineError, match="the registry knows none"):
            await RewardClient(pool).score(items("x"), timeout_s=0.3)
        first, second = LengthService(), LengthService()
        one = await registered(first, metrics_listen="127.0.0.1:0")
        two = await registered(second)
        await waiting
        found = {instance.address: instance for instance in pool.instances()}
        assert set(found) == {one.address, two.address}
        assert all(instance.service == "reward" and instance.serving for instance in found.values())
        assert found[one.address].metrics == one.metrics_address
        for _ in range(4):
            await RewardClient(pool).score(items("x"))
        assert (first.servicer.calls, second.servicer.calls) == (2, 2)
        await one.stop()
        await until(lambda: [instance.address for instance in pool.instances()] == [two.address])
        assert (await RewardClient(pool).score(items("x"))).scores[0].reward == 3


async def test_a_replica_that_drains_answers_what_it_has(registered, registry: Registry) -> None:
    hosted = LengthService()
    service = await registered(hosted, drain_s=10)
    async with Pool("reward", ChannelConfig(timeout_s=20), registry) as pool:
        call = asyncio.create_task(RewardClient(pool).score(items("wait")))
        await hosted.servicer.waiting.wait()
        stopping = asyncio.create_task(service.stop())
        async with asyncio.timeout(10):
            while await registry.list("reward"):
                await asyncio.sleep(0.02)
        await asyncio.sleep(0.5)
        assert not call.done()
        hosted.servicer.release.set()
        assert (await call).scores[0].reward == 3
        await stopping
        await until(lambda: pool.instances() == [])


async def test_a_replica_that_serves_is_kept_though_the_registry_lost_it(registered, registry: Registry) -> None:
    service = await registered(LengthService())
    async with Pool("reward", ChannelConfig(timeout_s=10), registry) as pool:
        await pool.ready(timeout_s=20)
        await service._announcement.withdraw()
        await asyncio.sleep(0.5)
        assert await registry.list("reward") == []
        assert (await RewardClient(pool).score(items("x"))).scores[0].reward == 3
        await service.health.set_serving(False)
        await until(lambda: pool.instances() == [])


async def test_what_a_service_says_of_itself_reaches_the_pool(registered, registry: Registry) -> None:
    service = await registered(LengthService())
    async with Pool("reward", ChannelConfig(), registry) as pool:
        await pool.ready(timeout_s=20)
        await service.health.set_serving(False, policy_version="7")
        await until(lambda: [one.extra for one in pool.instances()] == [{"policy_version": "7"}])
        await until(lambda: not pool.instances()[0].serving)
        await until_listed(registry, serving=False)
        await service.health.set_serving(True)
        await until_listed(registry, serving=True)


async def test_an_address_told_by_the_service_wins_over_where_it_listens(registered, registry: Registry) -> None:
    await registered(LengthService(), advertise="reward.internal:7000")
    assert [instance.address for instance in await registry.list("reward")] == ["reward.internal:7000"]


async def test_calls_go_on_while_nats_is_away(nats: NatsServer, registered, registry: Registry) -> None:
    await registered(LengthService())
    async with Pool("reward", ChannelConfig(timeout_s=10), registry) as pool:
        await pool.ready(timeout_s=20)
        nats.stop()
        begin = time.monotonic()
        while time.monotonic() - begin < 3.0:
            assert (await RewardClient(pool).score(items("x"))).scores[0].reward == 3
            await asyncio.sleep(0.1)
        nats.start()
        await until_listed(registry, serving=True)
        assert (await RewardClient(pool).score(items("x"))).scores[0].reward == 3


async def test_no_nats_at_start_is_told(nats: NatsServer, registered) -> None:
    nats.stop()
    gone = BusConfig(url=nats.url, run="pool", connect_timeout_s=1.0)
    hosted = LengthService()
    with pytest.raises(UnavailableError, match=r"127\.0\.0\.1"):
        await registered(hosted, registry=gone)
    assert hosted.closed == 1
    nats.start()


async def until_listed(registry: Registry, *, serving: bool) -> None:
    async with asyncio.timeout(10):
        while [one.serving for one in await registry.list("reward")] != [serving]:
            await asyncio.sleep(0.05)


async def _unavailable(what: str) -> None:
    raise UnavailableError("the reward model is being replaced")
