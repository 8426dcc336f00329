"""One connection to NATS that comes back by itself, and JetStream's request/reply API over it.

A call that the broker's death interrupts is sent again as soon as the connection is back: what is sent twice must
therefore be safe to send twice (ids, expected revisions, idempotent configuration).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import nats
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from rlctl.bus.config import BusConfig
from rlctl.bus.faults import ApiError, InterruptedCallError, NotServedError, shown
from rlctl.bus.login import login
from rlctl.core.errors import AccessDeniedError, AuthenticationError, ConfigError, UnavailableError

log = logging.getLogger("rlctl.bus")

T = TypeVar("T")

#: A reply that takes longer is asked for again.
REPLY_TIMEOUT_S = 5.0
#: How often a call that waits for NATS says so.
SAY_EVERY_S = 10.0


class Connection:
    """See the module. Made by `open`; all methods belong to the event loop that opened it."""

    def __init__(self, config: BusConfig) -> None:
        self.config = config
        self.url = shown(config.url)
        #: Set when the connection is finally closed: by `close`, or because NATS refuses us for good.
        self.closed = asyncio.Event()
        self._nats = Client()
        self._up = asyncio.Event()
        self._denied = asyncio.Event()
        self._closing = False
        self._error: Exception | None = None
        self._calls: dict[str, tuple[asyncio.Future[Msg], str]] = {}
        self._tokens = itertools.count()
        self._inbox = ""
        self._changed: list[Callable[[], None]] = []

    @classmethod
    async def open(cls, config: BusConfig, name: str) -> Connection:
        """Connects within `config.connect_timeout_s`. Raises UnavailableError, AuthenticationError, ConfigError."""
        connection = cls(config)
        dial = asyncio.ensure_future(connection._dial(name))
        denied = asyncio.ensure_future(connection._denied.wait())
        done, _ = await asyncio.wait(
            {dial, denied}, timeout=config.connect_timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
        denied.cancel()
        if dial in done:
            dial.result()
            return connection
        while not dial.done():
            # nats-py swallows a cancellation that hits it while it cleans a failed attempt up.
            dial.cancel()
            await asyncio.wait({dial}, timeout=0.1)
        connection._closing = True
        if connection._denied.is_set():
            raise AuthenticationError(
                f"NATS at {connection.url} refused user {config.user or '(none)'!r}: set bus.user and "
                "bus.password_file to a user of that server"
            )
        raise UnavailableError(
            f"no NATS server answered at {connection.url} within {config.connect_timeout_s:g} s "
            f"({connection._error or 'no answer'}): start one there, or correct the address",
            url=connection.url,
        )

    async def _dial(self, name: str) -> None:
        options = login(self.config, self._encrypted)
        await self._nats.connect(
            [part.strip() for part in self.config.url.split(",")],
            name=name,
            error_cb=self._on_error,
            disconnected_cb=self._on_disconnect,
            reconnected_cb=self._on_reconnect,
            closed_cb=self._on_closed,
            allow_reconnect=True,
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.1,  # type: ignore[arg-type]
            connect_timeout=5,
            ping_interval=10,
            flush_timeout=10.0,
            **options,
        )
        if self.config.ca is not None and not self._encrypted():
            await self.close()
            raise UnavailableError(f"NATS at {self.url} offers no TLS, and bus.ca demands it: configure its `tls`")
        self._inbox = self._nats.new_inbox()
        await self._nats.subscribe(f"{self._inbox}.*", cb=self._on_reply, pending_bytes_limit=0)
        self._up.set()

    def _encrypted(self) -> bool:
        return bool(self._nats._server_info.get("tls_required"))

    async def _on_error(self, error: Exception) -> None:
        self._error = error
        text = str(error)
        if "authorization violation" in text.lower() or isinstance(error, nats.errors.AuthorizationError):
            self._denied.set()
        elif denied := re.search(r'permissions violation for (\w+) to "([^"]+)"', text, re.IGNORECASE):
            log.error("NATS at %s does not allow user %r this: %s", self.url, self.config.user, text)
            for future, subject in list(self._calls.values()):
                if subject.lower() == denied[2].lower() and not future.done():
                    future.set_exception(
                        AccessDeniedError(
                            f"NATS at {self.url} does not allow user {self.config.user!r} to use {subject!r}: "
                            "take a user with that role, or widen its permissions"
                        )
                    )
        else:
            log.debug("NATS at %s: %r", self.url, error)

    async def _on_disconnect(self) -> None:
        self._up.clear()
        for future, _ in list(self._calls.values()):
            if not future.done():
                future.set_exception(InterruptedCallError("connection lost"))
        if not self._closing:
            log.warning("lost the connection to NATS at %s; reconnecting until it is back", self.url)
        self._notify()

    async def _on_reconnect(self) -> None:
        self._up.set()
        log.info("connected to NATS at %s again", self.url)
        self._notify()

    async def _on_closed(self) -> None:
        self._up.clear()
        self.closed.set()
        if not self._closing:
            log.critical(
                "the connection to NATS at %s is closed for good (%s): this process cannot go on",
                self.url,
                self._nats.last_error or self._error,
            )
        self._notify()

    def _notify(self) -> None:
        for callback in list(self._changed):
            callback()

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls `callback` whenever the connection is lost, is back, or is closed; returns how to end that."""
        self._changed.append(callback)
        return lambda: self._changed.remove(callback)

    async def _on_reply(self, message: Msg) -> None:
        entry = self._calls.get(message.subject.rsplit(".", 1)[-1])
        if entry is not None and not entry[0].done():
            entry[0].set_result(message)

    @property
    def connected(self) -> bool:
        return self._up.is_set()

    @property
    def max_payload(self) -> int:
        """Largest message that the server takes, headers included, bytes."""
        return self._nats.max_payload

    def raise_if_closed(self) -> None:
        if self.closed.is_set():
            raise UnavailableError(
                f"the connection to NATS at {self.url} is closed ({self._nats.last_error or 'closed by us'}); "
                "restart this process",
                url=self.url,
            )

    async def until_connected(self, timeout_s: float) -> bool:
        """Waits for the connection; False on time-out. Raises UnavailableError when it is closed for good."""
        self.raise_if_closed()
        if self._up.is_set():
            return True
        up, closed = asyncio.ensure_future(self._up.wait()), asyncio.ensure_future(self.closed.wait())
        await asyncio.wait({up, closed}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        up.cancel()
        closed.cancel()
        self.raise_if_closed()
        return self._up.is_set()

    def new_inbox(self) -> str:
        return self._nats.new_inbox()

    async def subscribe(
        self, subject: str, callback: Callable[[Msg], Awaitable[None]]
    ) -> Callable[[], Awaitable[None]]:
        """Subscribes, over reconnects, without a limit of pending bytes.

        Returns how to unsubscribe: what the server sent before it knew still reaches the callback.
        """
        self.raise_if_closed()
        subscription = await self._nats.subscribe(subject, cb=callback, pending_bytes_limit=0)

        async def unsubscribe() -> None:
            if self.connected:
                try:
                    await subscription.drain()  # type: ignore[no-untyped-call]
                except (nats.errors.Error, OSError, TimeoutError) as error:
                    log.debug("NATS at %s: unsubscribing: %r", self.url, error)

        return unsubscribe

    async def publish(
        self, subject: str, data: bytes = b"", *, reply: str = "", headers: dict[str, str] | None = None
    ) -> None:
        """Sends without waiting for anything; lost when the connection breaks now. Raises InterruptedCallError."""
        task = asyncio.current_task()
        assert task is not None
        cancellations = task.cancelling()
        try:
            await self._nats.publish(subject, data, reply=reply, headers=headers)
        except (nats.errors.Error, OSError) as error:
            raise InterruptedCallError(str(error)) from error
        if task.cancelling() > cancellations:
            # nats-py swallows a cancellation that hits it while it sends.
            raise asyncio.CancelledError

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

    async def close(self) -> None:
        """Sends what is buffered and ends the connection."""
        self._closing = True
        await self._nats.close()
        self.closed.set()
