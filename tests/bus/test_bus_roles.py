"""Users of NATS, one a role, and TLS."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from rlctl.bus.bus import Bus
from rlctl.bus.config import BusConfig
from rlctl.bus.fence import Fence
from rlctl.bus.registry import Instance, Registry
from rlctl.bus.roles import Role, make_passwords
from rlctl.bus.server import NatsServer
from rlctl.core.errors import AccessDeniedError, AuthenticationError, ConfigError, UnavailableError
from support.certificates import Authority
from support.groups import RUN, group_id, rollout, task

pytestmark = pytest.mark.anyio

As = Callable[[Role], Awaitable[Bus]]


@pytest.fixture
async def as_role(tmp_path: Path) -> AsyncIterator[As]:
    """Connects with the user of a role to a server that knows nobody else."""
    passwords = make_passwords(tmp_path / "passwords")
    server = NatsServer(tmp_path / "nats", run=RUN, users=passwords)
    server.start()
    buses: list[Bus] = []

    async def connect(role: Role) -> Bus:
        config = BusConfig(url=server.url, run=RUN, user=role, password_file=passwords[role], outage_timeout_s=5)
        buses.append(await Bus.connect(config, role))
        return buses[-1]

    yield connect
    for bus in buses:
        await bus.close()
    server.stop()


async def test_each_role_can_do_its_work(as_role: As) -> None:
    trainer, worker, service = await as_role("trainer"), await as_role("worker"), await as_role("service")
    await trainer.create_streams()
    epoch = await Fence(trainer).acquire()
    assert await trainer.publish_prompt(task(1))
    [prompt] = await (await worker.prompt_consumer()).fetch(1, 2.0)
    assert await worker.is_open(prompt.message.id)
    assert await worker.publish_rollout(rollout(1))
    rollouts = await trainer.rollout_consumer(epoch, max_ack_pending=4)
    [group] = await rollouts.fetch(1, 2.0)
    await group.ack_sync()
    await prompt.ack_sync()
    await trainer.rollout_consumer(await Fence(trainer).acquire(), max_ack_pending=4)
    instance = Instance("reward", "reward-1", "127.0.0.1:1", pid=1, serving=True)
    await Registry(service).announce(instance)
    for bus in (trainer, worker, service):
        registry = Registry(bus)
        assert await registry.list("reward") == [instance]
        assert await asyncio.wait_for(anext(registry.watch("reward")), 5.0) == [instance]


async def test_roles_cannot_do_each_others_work(as_role: As) -> None:
    trainer, worker, service = await as_role("trainer"), await as_role("worker"), await as_role("service")
    await trainer.create_streams()
    await Fence(trainer).acquire()
    with pytest.raises(AccessDeniedError, match=r"does not allow user 'worker' to use 'rlctl\..*prompts\.0\.1\.0'"):
        await worker.publish_prompt(task(1))
    with pytest.raises(AccessDeniedError):
        await worker.rollout_consumer(1, 8)
    with pytest.raises(AccessDeniedError):
        await worker.create_streams()
    with pytest.raises(AccessDeniedError):
        await Fence(worker).acquire()
    with pytest.raises(AccessDeniedError):
        await trainer.publish_rollout(rollout(1))
    with pytest.raises(AccessDeniedError):
        await trainer.prompt_consumer()
    with pytest.raises(AccessDeniedError):
        await service.publish_rollout(rollout(1))
    with pytest.raises(AccessDeniedError):
        await service.prompt_exists(group_id(1))
    assert not worker.closed.is_set(), "what is not allowed does not cost the connection"


async def test_nobody_enters_without_a_password(as_role: As, tmp_path: Path) -> None:
    bus = await as_role("worker")
    wrong = tmp_path / "wrong"
    wrong.write_text("guess")
    url = bus.config.url
    with pytest.raises(AuthenticationError, match=r"refused user '\(none\)': set bus.user and bus.password_file"):
        await Bus.connect(BusConfig(url=url, run=RUN), "test")
    with pytest.raises(AuthenticationError, match="refused user 'worker'"):
        await Bus.connect(BusConfig(url=url, run=RUN, user="worker", password_file=wrong), "test")
    with pytest.raises(ConfigError, match=r"bus.password_file: cannot read"):
        await Bus.connect(BusConfig(url=url, user="worker", password_file=tmp_path / "absent"), "test")


def test_password_files_are_private_random_and_kept(tmp_path: Path) -> None:
    first = {role: path.read_text() for role, path in make_passwords(tmp_path / "p").items()}
    assert set(first) == {"admin", "trainer", "worker", "service"}
    assert len(set(first.values())) == 4
    files = make_passwords(tmp_path / "p")
    assert {role: path.read_text() for role, path in files.items()} == first
    assert {stat.S_IMODE(path.stat().st_mode) for path in files.values()} == {0o600}


async def test_over_tls_the_authority_is_checked(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path, "authority"), Authority(tmp_path, "other")
    pair = authority.issue("nats")
    server = NatsServer(tmp_path / "nats", host="0.0.0.0", cert=pair.cert, key=pair.key)
    server.start()
    url = f"tls://127.0.0.1:{server.port}"
    try:
        bus = await Bus.connect(BusConfig(url=url, run=RUN, ca=authority.cert), "test")
        await bus.create_streams()
        assert await bus.publish_prompt(task(1))
        await bus.close()
        with pytest.raises(UnavailableError, match=r"(?i)certificate verify failed"):
            await Bus.connect(BusConfig(url=url, run=RUN, ca=other.cert, connect_timeout_s=1.0), "test")
        with pytest.raises(ConfigError, match=r"bus.ca: cannot read"):
            await Bus.connect(BusConfig(url=url, run=RUN, ca=tmp_path / "absent"), "test")
    finally:
        server.stop()


async def test_a_password_does_not_go_to_a_server_without_the_tls_asked_for(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    passwords = make_passwords(tmp_path / "passwords")
    server = NatsServer(tmp_path / "nats", run=RUN, users=passwords)
    server.start()
    config = BusConfig(
        url=server.url,
        run=RUN,
        user="worker",
        password_file=passwords["worker"],
        ca=authority.cert,
        connect_timeout_s=1.0,
    )
    try:
        with pytest.raises(UnavailableError, match="offers no TLS"):
            await Bus.connect(config, "test")
    finally:
        server.stop()
