"""A connection to one address: every call has a deadline, a size limit, the token, and errors of our own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Generic, TypeVar

from google.protobuf.message import Message

from rlctl.rpc.config import ChannelConfig

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)
StubClass = Callable[[Any], Any]


class Duplex(Generic[Request, Response]):
    """A call with streams both ways."""

    async def write(self, request: Request) -> None:
        """Sends one message. Raises the call's error when the other side has ended it."""
        raise NotImplementedError

    async def read(self) -> Response | None:
        """The next answer; None when the other side is done."""
        raise NotImplementedError

    async def done_writing(self) -> None:
        """Says that nothing more will be sent."""
        raise NotImplementedError

    def cancel(self) -> None:
        """Ends the call on both sides."""
        raise NotImplementedError


class Channel:
    def __init__(self, service: str, address: str, config: ChannelConfig) -> None:
        raise NotImplementedError

    async def call(
        self,
        stub_class: StubClass,
        method: str,
        request: Message | Sequence[Message],
        *,
        timeout_s: float | None = None,
    ) -> Any:
        raise NotImplementedError

    def stream(
        self, stub_class: StubClass, method: str, request: Message, *, timeout_s: float | None = None
    ) -> AsyncIterator[Any]:
        raise NotImplementedError

    def duplex(self, stub_class: StubClass, method: str, *, timeout_s: float | None = None) -> Duplex[Any, Any]:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError
