"""A connection to one address: every call has a deadline, a size limit, the token, and errors of our own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Generic, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from rlctl.core.errors import ConfigError, ResourceExhaustedError, UnavailableError
from rlctl.rpc import auth
from rlctl.rpc.address import is_loopback, split_address
from rlctl.rpc.config import ChannelConfig
from rlctl.rpc.errors import from_rpc_error, from_status, too_large
from rlctl.rpc.tls import channel_credentials, channel_options

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)

#: A generated `XxxServiceStub`.
StubClass = Callable[[Any], Any]


class Channel:
    """Calls to `service` at `address`. Made and used inside one event loop."""

    def __init__(self, service: str, address: str, config: ChannelConfig) -> None:
        """Connects at the first call. Raises ConfigError."""
        self.service = service
        self.address = address
        self.timeout_s = config.timeout_s
        self._closed = False
        host, _ = split_address(address, "addresses")
        token = auth.read_token(config.token_file)
        if token is not None and config.tls is None and not is_loopback(host):
            raise ConfigError(f"{address}: a token is sent over TLS only; set tls.ca of the {service} service")
        self._max_bytes = config.max_message_mb << 20
        self._metadata = (auth.header(token),) if token is not None else ()
        self._stubs: dict[StubClass, Any] = {}
        options: list[tuple[str, Any]] = [
            ("grpc.max_send_message_length", self._max_bytes),
            ("grpc.max_receive_message_length", self._max_bytes),
            # A server that vanished without closing is noticed, and one that comes back is found within a second.
            ("grpc.keepalive_time_ms", 20_000),
            ("grpc.keepalive_timeout_ms", 20_000),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 2_000),
            ("grpc.max_reconnect_backoff_ms", 1_000),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_http_proxy", 0),
            *channel_options(config.tls),
        ]
        self._channel = (
            grpc.aio.insecure_channel(address, options)
            if config.tls is None
            else grpc.aio.secure_channel(address, channel_credentials(config.tls), options)
        )

    async def call(
        self,
        stub_class: StubClass,
        method: str,
        request: Message | Sequence[Message],
        *,
        timeout_s: float | None = None,
    ) -> Any:
        """A call with one answer; `request` is a sequence of messages where the method takes a stream.

        Raises an RlctlError; cancelling cancels the call on the other side too.
        """
        name, function = self._method(stub_class, method)
        messages = [request] if isinstance(request, Message) else request
        for message in messages:
            self._check_size(name, message)
        timeout = self.timeout_s if timeout_s is None else timeout_s
        argument = request if isinstance(request, Message) else iter(request)
        try:
            return await function(argument, timeout=timeout, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, method=name, address=self._who(), timeout_s=timeout) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._closed and task is not None and not task.cancelling():
                raise UnavailableError(f"{name}: the connection to {self._who()} was closed here") from None
            raise

    async def stream(
        self, stub_class: StubClass, method: str, request: Message, *, timeout_s: float | None = None
    ) -> AsyncGenerator[Any, None]:
        """A call with a stream of answers; leaving the iteration cancels the call. Raises an RlctlError."""
        name, function = self._method(stub_class, method)
        self._check_size(name, request)
        timeout = self.timeout_s if timeout_s is None else timeout_s
        call = function(request, timeout=timeout, metadata=self._metadata)
        try:
            async for answer in call:
                yield answer
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, method=name, address=self._who(), timeout_s=timeout) from None
        finally:
            call.cancel()

    def duplex(self, stub_class: StubClass, method: str, *, timeout_s: float | None = None) -> Duplex[Any, Any]:
        """A call with streams both ways; `timeout_s` is for all of it."""
        name, function = self._method(stub_class, method)
        timeout = self.timeout_s if timeout_s is None else timeout_s
        return Duplex(self, name, function(timeout=timeout, metadata=self._metadata), timeout)

    async def close(self) -> None:
        """Ends the calls in flight (UnavailableError) and closes the connection."""
        self._closed = True
        await self._channel.close()

    def _method(self, stub_class: StubClass, method: str) -> tuple[str, Any]:
        """`Service/Method` and the callable."""
        stub = self._stubs.get(stub_class)
        if stub is None:
            stub = self._stubs[stub_class] = stub_class(self._channel)
        service = getattr(stub_class, "__name__", self.service).removesuffix("Stub")
        return f"{service}/{method}", getattr(stub, method)

    def _who(self) -> str:
        return f"{self.service} at {self.address}"

    def _check_size(self, name: str, message: Message) -> None:
        size = message.ByteSize()
        if size > self._max_bytes:
            raise ResourceExhaustedError(
                too_large(f"{name}: the request", size, self._max_bytes),
                reason="MESSAGE_TOO_LARGE",
                limit=self._max_bytes,
            )


class Duplex(Generic[Request, Response]):
    """A call with streams both ways. Cancelling a `write` or `read` cancels the whole call."""

    def __init__(self, channel: Channel, name: str, call: Any, timeout_s: float) -> None:
        self._channel = channel
        self._name = name
        self._call = call
        self._timeout_s = timeout_s

    async def write(self, request: Request) -> None:
        """Sends one message. Raises the RlctlError with which the other side has ended the call."""
        self._channel._check_size(self._name, request)
        try:
            await self._call.write(request)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            raise await self._error() from None

    async def read(self) -> Response | None:
        """The next answer; None when the other side is done. Raises an RlctlError."""
        try:
            answer = await self._call.read()
        except grpc.aio.AioRpcError:
            raise await self._error() from None
        if answer is grpc.aio.EOF:
            return None
        response: Response = answer
        return response

    async def done_writing(self) -> None:
        """Says that nothing more will be sent."""
        await self._call.done_writing()

    def cancel(self) -> None:
        """Ends the call on both sides; after its end it does nothing."""
        self._call.cancel()

    async def _error(self) -> Exception:
        return from_status(
            await self._call.code(),
            await self._call.details() or "",
            await self._call.trailing_metadata() or (),
            method=self._name,
            address=self._channel._who(),
            timeout_s=self._timeout_s,
        )
