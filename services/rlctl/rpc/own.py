"""A service of one's own for the length of a job: started on loopback, and gone with the job however that ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import grpc
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub

from rlctl.core.errors import UnavailableError
from rlctl.core.ports import free_port
from rlctl.rpc import auth
from rlctl.rpc.config import ChannelConfig

T = TypeVar("T")
_BOUND = str(Path(__file__).with_name("bound.py"))
_POLL_S = 1.0
_DRAIN_S = 15.0
_TAIL_CHARACTERS = 800


@dataclass(frozen=True)
class OwnService:
    """The service's process and address."""

    name: str
    address: str
    process: subprocess.Popen[bytes]
    log_path: Path

    @property
    def channel(self) -> ChannelConfig:
        """How to reach it."""
        return ChannelConfig(addresses=[self.address])

    async def ended(self) -> None:
        """Returns never; raises UnavailableError with the log's end when the process ended by itself."""
        while self.process.poll() is None:
            await asyncio.sleep(_POLL_S / 2)
        raise UnavailableError(f"the {self.name} service ended: {self._tail()} (whole log: {self.log_path})")

    def wait(self, timeout_s: float) -> None:
        """Until it serves. Raises UnavailableError with the log's end."""
        deadline = time.monotonic() + timeout_s
        token = auth.read_token(None)
        metadata = [auth.header(token)] if token is not None else []
        with grpc.insecure_channel(self.address, [("grpc.enable_http_proxy", 0)]) as channel:
            health = HealthStub(channel)
            while True:
                try:
                    answer = health.Check(health_pb2.HealthCheckRequest(), timeout=_POLL_S, metadata=metadata)
                except grpc.RpcError:
                    answer = None
                if answer is not None and answer.status == health_pb2.HealthCheckResponse.SERVING:
                    return
                self._check(deadline, timeout_s)
                time.sleep(_POLL_S / 5)

    def _check(self, deadline: float, timeout_s: float) -> None:
        if self.process.poll() is not None:
            raise UnavailableError(f"the {self.name} service ended before it served:\n  {self._tail()}")
        if time.monotonic() > deadline:
            raise UnavailableError(f"the {self.name} service did not serve within {timeout_s:.0f} s:\n  {self._tail()}")

    def _tail(self) -> str:
        return self.log_path.read_text("utf-8", "replace")[-_TAIL_CHARACTERS:].strip()


@contextlib.contextmanager
def own_service(
    name: str,
    settings: Mapping[str, Any],
    log_path: Path,
    *,
    environment: Mapping[str, str] | None = None,
    secrets: Collection[str] = (),
) -> Iterator[OwnService]:
    """Starts `python -m rlctl.<name>` with these settings on loopback and ends its whole group in any case.

    It is not ready yet when it is given: clients wait, within their deadlines. `settings` are written beside the
    log. `environment` is added to ours, without the variables `secrets`.
    """
    address = f"127.0.0.1:{free_port()}"
    log_path.parent.mkdir(parents=True, exist_ok=True)
    config = log_path.with_suffix(".json")
    config.write_text(json.dumps({**settings, "server": {"listen": address, "metrics_listen": None}}, indent=2))
    kept = {name: value for name, value in os.environ.items() if name not in secrets}
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", _BOUND, str(os.getpid()), sys.executable, "-m", f"rlctl.{name}",
             "--config", str(config)],
            stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
            env={**kept, **(environment or {})},
        )  # fmt: skip
    try:
        yield OwnService(name, address, process, log_path)
    finally:
        _end(process)


async def alongside(work: Awaitable[T], services: Sequence[OwnService]) -> T:
    """What `work` gives; UnavailableError as soon as one of the services that it needs ends by itself."""
    working = asyncio.ensure_future(work)
    watching = [asyncio.ensure_future(service.ended()) for service in services]
    try:
        await asyncio.wait((working, *watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            await next(one for one in watching if one.done())
        return await working
    finally:
        for one in (working, *watching):
            one.cancel()
        await asyncio.gather(working, *watching, return_exceptions=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(_DRAIN_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
