"""Messages pulled from a work-queue stream, each held until it is settled.

    fetch ──► Delivery ──► ack | ack_sync | nak
                 │
                 └── renewed every ack_wait/3 until then, so that nobody else gets it

A consumer asks the broker for no more messages than its caller has asked for, so that a slow worker does not keep
prompts from a free one. After a broker's crash the same message may come again while it is still held: the held
delivery then takes over the new acknowledgement subject, and the caller sees nothing.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from google.protobuf.message import DecodeError
from nats.aio.msg import Msg

from rlctl.bus.connection import Connection
from rlctl.bus.faults import ApiError, InterruptedCallError, NotServedError, refused
from rlctl.core.errors import RlctlError

log = logging.getLogger("rlctl.bus")


M = TypeVar("M")

_ACK = b"+ACK"
_NAK = b"-NAK"
_PROGRESS = b"+WPI"
_TERMINATE = b"+TERM"


class Delivery(Generic[M]):
    """A message and the duty to settle it, once. `data` are the bytes as published."""

    def __init__(self, consumer: Consumer[M], message: M, data: bytes, reply: str, sequence: int, attempts: int):
        self.message = message
        self.data = data
        #: Whether somebody had it before, and perhaps worked on it.
        self.redelivered = attempts > 1
        self._consumer = consumer
        self._reply = reply
        self._sequence = sequence

    async def ack(self) -> None:
        """Done; not waiting for the broker. Lost with a breaking connection, and then it comes again."""
        await self._consumer._finish(self)
        await self._consumer._send(self, _ACK)

    async def ack_sync(self) -> None:
        """Done; returns when the broker has removed it. Raises UnavailableError, FencedError."""
        await self._consumer._finish(self)
        await self._consumer._ack_sync(self)

    async def nak(self, delay_s: float = 0.0) -> None:
        """Give it back, to be delivered again after `delay_s` seconds, to whoever asks first."""
        self._consumer._held.pop(self._sequence, None)
        data = _NAK + (b" " + json.dumps({"delay": int(delay_s * 1e9)}).encode() if delay_s > 0 else b"")
        await self._consumer._send(self, data)


class Consumer(Generic[M]):
    """A durable consumer of one stream. Made by `Bus`; one `fetch` at a time."""

    def __init__(
        self,
        connection: Connection,
        stream: str,
        name: str,
        *,
        decode: Callable[[bytes, str], M],
        ensure: Callable[[], Awaitable[None]],
        ack_wait_s: float,
        before_ack: Callable[[M], Awaitable[None]] | None = None,
    ) -> None:
        """`ensure` creates the consumer at the broker when it is not there (and raises when it must not be);
        `before_ack` runs before a message is acknowledged."""
        self._connection = connection
        self._stream = stream
        self._name = name
        self._decode = decode
        self._ensure = ensure
        self._ack_wait_s = ack_wait_s
        self._before_ack = before_ack
        self._ready: deque[Delivery[M]] = deque()
        self._held: dict[int, Delivery[M]] = {}
        #: Messages that the broker may still send for what was asked, and until when.
        self._asked = 0
        self._asked_until = 0.0
        self._changed = asyncio.Event()
        self._renew_now = asyncio.Event()
        self._gone = False
        self._pause_until = 0.0
        self._inbox = connection.new_inbox()
        self._unsubscribe: Callable[[], Awaitable[None]] | None = None
        self._ignore: Callable[[], None] | None = None
        self._renewal: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._ensure()
        self._unsubscribe = await self._connection.subscribe(self._inbox, self._on_message)
        self._ignore = self._connection.on_change(self._on_connection)
        self._renewal = asyncio.create_task(self._renew())

    async def fetch(self, max_messages: int, timeout_s: float) -> list[Delivery[M]]:
        """What there is, at most `max_messages`, as soon as there is any; [] on time-out.

        Raises FencedError when a newer trainer has taken the consumer over, UnavailableError when the connection is
        closed for good. A lost connection is waited for within the time-out.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            self._connection.raise_if_closed()
            if self._gone:
                await self._ensure()
                self._gone = False
            if self._ready:
                count = min(max_messages, len(self._ready))
                return [self._ready.popleft() for _ in range(count)]
            left = deadline - time.monotonic()
            if left <= 0:
                return []
            self._changed.clear()
            pause = self._pause_until - time.monotonic()
            if pause > 0:
                left = min(left, pause)
            elif self._connection.connected:
                await self._ask(max_messages, left)
            try:
                async with asyncio.timeout(left):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _ask(self, wanted: int, expires_s: float) -> None:
        """Asks for what is wanted beyond what was already asked for."""
        now = time.monotonic()
        if now > self._asked_until:
            self._asked = 0
        missing = wanted - self._asked
        if missing <= 0:
            return
        self._asked += missing
        # The broker's 408 ends a pull; the extra second only matters when that answer is lost.
        self._asked_until = max(self._asked_until, now + expires_s + 1.0)
        body = {"batch": missing, "expires": int(expires_s * 1e9)}
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self._name}"
        try:
            await self._connection.publish(subject, json.dumps(body).encode(), reply=self._inbox)
        except InterruptedCallError:
            # The connection is breaking: once it is back everything is asked for again.
            self._asked = 0
            self._pause_until = time.monotonic() + 0.05

    async def _on_message(self, raw: Msg) -> None:
        status = raw.headers.get("Status") if raw.headers and not raw.reply else None
        if status is None:
            self._asked = max(0, self._asked - 1)
            await self._take(raw)
        elif status != "100":
            self._on_status(status, raw.headers or {})
        self._changed.set()

    def _on_status(self, status: str, headers: dict[str, str]) -> None:
        """A pull has ended: expired, or because of something that happened to the consumer."""
        self._asked = max(0, self._asked - int(headers.get("Nats-Pending-Messages", self._asked)))
        description = headers.get("Description", "")
        if status == "503" or (status == "409" and "deleted" in description.lower()):
            self._gone = True
        elif status not in ("404", "408"):
            log.warning("consumer %s of %s: %s %s", self._name, self._stream, status, description)
            self._pause_until = time.monotonic() + 0.25

    async def _take(self, raw: Msg) -> None:
        sequence = raw.metadata.sequence.stream
        held = self._held.get(sequence)
        if held is not None:
            held._reply = raw.reply
            return
        try:
            message = self._decode(raw.data, raw.subject)
        except (DecodeError, RlctlError) as error:
            log.error("message %d of %s is unreadable and was thrown away: %s", sequence, self._stream, error)
            await self._terminate(raw)
            return
        delivery = Delivery(self, message, raw.data, raw.reply, sequence, raw.metadata.num_delivered)
        self._held[sequence] = delivery
        self._ready.append(delivery)

    async def _terminate(self, raw: Msg) -> None:
        try:
            await self._connection.publish(raw.reply, _TERMINATE)
        except InterruptedCallError as failed:
            log.debug("%s was not terminated and comes again: %s", raw.reply, failed)

    def _on_connection(self) -> None:
        # The broker drops the pulls of a lost connection, and its ack timers have run on.
        self._asked = 0
        self._changed.set()
        if self._connection.connected:
            self._renew_now.set()

    async def _renew(self) -> None:
        while not self._connection.closed.is_set():
            try:
                async with asyncio.timeout(self._ack_wait_s / 3):
                    await self._renew_now.wait()
            except TimeoutError:
                pass
            self._renew_now.clear()
            if self._connection.connected:
                for delivery in list(self._held.values()):
                    await self._send(delivery, _PROGRESS)

    async def _send(self, delivery: Delivery[M], data: bytes) -> None:
        """Best effort: what the broker does not hear it delivers again."""
        if not self._connection.closed.is_set():
            try:
                await self._connection.publish(delivery._reply, data)
            except InterruptedCallError as error:
                log.debug("acknowledgement of %d of %s was not sent: %r", delivery._sequence, self._stream, error)

    async def _finish(self, delivery: Delivery[M]) -> None:
        if self._before_ack is not None:
            await self._before_ack(delivery.message)
        self._held.pop(delivery._sequence, None)

    async def _ack_sync(self, delivery: Delivery[M]) -> None:
        try:
            await self._connection.request(delivery._reply, _ACK, timeout_s=2.0)
        except (NotServedError, InterruptedCallError):
            # A broker that came back may have forgotten the delivery, and then answers no ack of it. Taking the message
            # out of the queue is the same, as long as the consumer is still ours.
            await self._ensure()
            await self._remove(delivery._sequence)

    async def _remove(self, sequence: int) -> None:
        try:
            await self._connection.api(f"STREAM.MSG.DELETE.{self._stream}", {"seq": sequence, "no_erase": True})
        except ApiError as error:
            if await self._stored(sequence):
                raise refused(error, f"acknowledge message {sequence} of {self._stream}") from error

    async def _stored(self, sequence: int) -> bool:
        try:
            await self._connection.api(f"STREAM.MSG.GET.{self._stream}", {"seq": sequence})
        except ApiError as error:
            if error.code == 404:
                return False
            raise refused(error, f"look for message {sequence} of {self._stream}") from error
        return True

    async def close(self) -> None:
        """Stops asking, and gives back whatever is not settled."""
        if self._unsubscribe is None:
            return
        await self._unsubscribe()
        self._unsubscribe = None
        if self._ignore is not None:
            self._ignore()
        if self._renewal is not None:
            self._renewal.cancel()
        for delivery in list(self._held.values()):
            await delivery.nak()
        self._ready.clear()
