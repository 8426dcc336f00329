"""The line to NATS: it comes back by itself, and says when it is gone, back, or closed for good."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Self

import nats
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from rlctl.bus.config import BusConfig
from rlctl.bus.faults import InterruptedCallError, shown
from rlctl.bus.login import login
from rlctl.core.errors import AuthenticationError, UnavailableError

log = logging.getLogger("rlctl.bus")


class Link:
    """Made by `open`; all methods belong to the event loop that opened it."""

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
        self._inbox = ""
        self._changed: list[Callable[[], None]] = []

    @classmethod
    async def open(cls, config: BusConfig, name: str) -> Self:
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
            self._on_denied(denied[2])
        else:
            log.debug("NATS at %s: %r", self.url, error)

    async def _on_disconnect(self) -> None:
        self._up.clear()
        self._on_lost()
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
        """A message came to one of the subjects `_inbox.*`."""

    def _on_lost(self) -> None:
        """The connection is gone; what waits for a reply will get none."""

    def _on_denied(self, subject: str) -> None:
        """The server refuses a subject; its letters may have another case."""

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

    async def close(self) -> None:
        """Sends what is buffered and ends the connection."""
        self._closing = True
        await self._nats.close()
        self.closed.set()
