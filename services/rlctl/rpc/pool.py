"""The replicas of a service, and calls to the one that has the fewest in flight."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any

from google.protobuf.message import Message

from rlctl.rpc.config import ChannelConfig

if TYPE_CHECKING:
    from rlctl.bus.registry import Instance, Registry


class Pool:
    def __init__(self, service: str, config: ChannelConfig, registry: Registry | None = None) -> None:
        """`service` is its name in the registry; without addresses in `config` the registry is asked."""
        raise NotImplementedError

    async def ready(self, replicas: int = 1, timeout_s: float | None = None) -> None:
        """Waits until so many replicas serve. Raises DeadlineError."""
        raise NotImplementedError

    def instances(self) -> list[Instance]:
        """All replicas known, with `serving` as their health says."""
        raise NotImplementedError

    async def call(
        self,
        stub_class: Callable[[Any], Any],
        method: str,
        request: Message | Sequence[Message],
        *,
        timeout_s: float | None = None,
        retry: bool = False,
    ) -> Any:
        """A call with one answer; `request` is a sequence of messages where the method takes a stream."""
        raise NotImplementedError

    def stream(
        self,
        stub_class: Callable[[Any], Any],
        method: str,
        request: Message,
        *,
        timeout_s: float | None = None,
        retry: bool = False,
    ) -> AsyncIterator[Any]:
        """A call with a stream of answers; tried again only before the first answer."""
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError
