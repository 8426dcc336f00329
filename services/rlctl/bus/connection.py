"""One connection to NATS that comes back by itself, and JetStream's request/reply API over it.

A call that the broker's death interrupts is sent again as soon as the connection is back: what is sent twice must
therefore be safe to send twice (ids, expected revisions, idempotent configuration).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from nats.aio.msg import Msg

from rlctl.bus.config import BusConfig
from rlctl.bus.faults import ApiError, InterruptedCallError, NotServedError
from rlctl.bus.link import Link, log
from rlctl.core.errors import AccessDeniedError, ConfigError, UnavailableError

T = TypeVar("T")

#: A reply that takes longer is asked for again.
REPLY_TIMEOUT_S = 5.0
#: How often a call that waits for NATS says so.
SAY_EVERY_S = 10.0


class Connection(Link):
    """See the module."""

    def __init__(self, config: BusConfig) -> None:
        super().__init__(config)
        self._calls: dict[str, tuple[asyncio.Future[Msg], str]] = {}
        self._tokens = itertools.count()

    async def _on_reply(self, message: Msg) -> None:
        entry = self._calls.get(message.subject.rsplit(".", 1)[-1])
        if entry is not None and not entry[0].done():
            entry[0].set_result(message)

    def _on_lost(self) -> None:
        for future, _ in list(self._calls.values()):
            if not future.done():
                future.set_exception(InterruptedCallError("connection lost"))

    def _on_denied(self, subject: str) -> None:
        for future, called in list(self._calls.values()):
            if called.lower() == subject.lower() and not future.done():
                future.set_exception(
                    AccessDeniedError(
                        f"NATS at {self.url} does not allow user {self.config.user!r} to use {called!r}: "
                        "take a user with that role, or widen its permissions"
                    )
                )

    async def request(
        self,
        subject: str,
        data: bytes = b"",
        *,
        headers: dict[str, str] | None = None,
        timeout_s: float = REPLY_TIMEOUT_S,
    ) -> Msg:
        """One request and its reply. Raises InterruptedCallError, NotServedError or AccessDeniedError."""
        token = format(next(self._tokens), "x")
        future: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        self._calls[token] = (future, subject)
        try:
            async with asyncio.timeout(timeout_s):
                await self.publish(subject, data, reply=f"{self._inbox}.{token}", headers=headers)
                message = await future
        except TimeoutError as error:
            raise InterruptedCallError(f"no reply within {timeout_s:g} s") from error
        finally:
            del self._calls[token]
            future.cancel()
        if not message.data and message.headers and message.headers.get("Status") == "503":
            raise NotServedError(subject)
        return message

    async def persist(self, what: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """Runs `attempt` until it is not interrupted, for `outage_timeout_s` at most.

        A subject that nobody serves is asked again for a few seconds: a cluster may be choosing a leader.
        """
        start = time.monotonic()
        said = start
        unserved_until: float | None = None
        pause = 0.0
        while True:
            left = start + self.config.outage_timeout_s - time.monotonic()
            if left <= 0:
                raise UnavailableError(
                    f"NATS at {self.url} did not {what} within {self.config.outage_timeout_s:g} s: "
                    "see whether the server runs and its disk has room",
                    url=self.url,
                )
            if await self.until_connected(min(left, SAY_EVERY_S)):
                try:
                    async with asyncio.timeout(left):
                        return await attempt()
                except TimeoutError:
                    continue
                except NotServedError:
                    unserved_until = unserved_until or time.monotonic() + 3.0
                    if time.monotonic() > unserved_until:
                        raise
                    pause = 0.25
                except InterruptedCallError:
                    self.raise_if_closed()
                    pause = min(pause * 2 or 0.02, 1.0)
                await asyncio.sleep(pause)
            if time.monotonic() - said > SAY_EVERY_S:
                said = time.monotonic()
                log.warning("waiting since %.0f s for NATS at %s to %s", said - start, self.url, what)

    async def api(self, subject: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """A call of JetStream's API, sent again when interrupted. Raises ApiError and RlctlError."""
        data = b"" if body is None else json.dumps(body).encode()

        async def attempt() -> Msg:
            return await self.request(f"$JS.API.{subject}", data)

        try:
            message = await self.persist(f"answer {subject}", attempt)
        except NotServedError as error:
            raise ConfigError(
                f"NATS at {self.url} does not answer {error}: JetStream is off there; start it with a `jetstream` block"
            ) from error
        reply: dict[str, Any] = json.loads(message.data)
        if "error" in reply:
            raise ApiError(reply["error"])
        return reply
