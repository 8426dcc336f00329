"""What surrounds every call on a server, from the outside in: metrics, errors, token, gate, deadline.

Each is a layer: an async context manager entered with the call and left when its last answer is out. Health
checks pass untouched (probes have no token, and must be answered while loading and draining); reflection
passes metrics, errors and token.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple, TypeAlias

import grpc
import grpc.aio

from rlctl.core.errors import DeadlineError, ResourceExhaustedError
from rlctl.rpc import auth
from rlctl.rpc.errors import to_status, too_large
from rlctl.rpc.gate import Gate

HEALTH = "grpc.health.v1.Health"
REFLECTION = "grpc.reflection.v1alpha.ServerReflection"

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class Call(NamedTuple):
    """A call that came in."""

    service: str
    """Full name: `rlctl.v1.RewardService`."""
    method: str
    context: grpc.aio.ServicerContext[Any, Any]

    @property
    def name(self) -> str:
        """`RewardService/Score`."""
        return f"{self.service.rpartition('.')[2]}/{self.method}"


Layer = Callable[[Call], AbstractAsyncContextManager[None]]


@asynccontextmanager
async def translate_errors(call: Call) -> AsyncIterator[None]:
    """Ends a call whose servicer raised with the status of the error."""
    try:
        yield
    except grpc.aio.AbortError:
        raise
    except Exception as error:
        status = to_status(error, call.name)
        await call.context.abort(status.code, status.message, status.trailers)


def require_token(token: str) -> Layer:
    """Refuses calls without this bearer token."""

    @asynccontextmanager
    async def layer(call: Call) -> AsyncIterator[None]:
        entries = call.context.invocation_metadata() or ()
        given = next((value for key, value in entries if key == auth.HEADER), None)
        auth.check(given, token)
        yield

    return layer


def pass_gate(gate: Gate) -> Layer:
    """Counts the calls in work, and refuses those that the gate refuses."""

    @asynccontextmanager
    async def layer(call: Call) -> AsyncIterator[None]:
        with gate.enter():
            yield

    return layer


def limit_time(timeout_s: float) -> Layer:
    """Gives a deadline to a call that came without one."""

    @asynccontextmanager
    async def layer(call: Call) -> AsyncIterator[None]:
        remaining: float | None = call.context.time_remaining()
        if remaining is not None:
            yield
            return
        limit = asyncio.timeout(timeout_s)
        try:
            async with limit:
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            raise DeadlineError(f"{call.name} took longer than {timeout_s:g} s; the call had no deadline") from None

    return layer


class Layers(grpc.aio.ServerInterceptor):
    """Puts the layers around every servicer method, and checks the size of what it answers."""

    def __init__(self, always: Sequence[Layer], calls: Sequence[Layer], max_message_bytes: int) -> None:
        """`always` are for every call, also reflection; `calls` come inside them, for the service itself."""
        self._always = tuple(always)
        self._calls = tuple(calls)
        self._max_message_bytes = max_message_bytes

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        handler = await continuation(handler_call_details)
        _, service, method = str(handler_call_details.method).split("/", 2)
        if handler is None or service == HEALTH:
            return handler
        layers = self._always if service == REFLECTION else self._always + self._calls
        return self._wrap(handler, service, method, layers)

    def _wrap(self, handler: Handler, service: str, method: str, layers: tuple[Layer, ...]) -> Handler:
        @asynccontextmanager
        async def around(context: Any) -> AsyncIterator[Call]:
            call = Call(service, method, context)
            async with AsyncExitStack() as stack:
                for layer in layers:
                    await stack.enter_async_context(layer(call))
                yield call

        sides = (handler.request_streaming, handler.response_streaming)
        kind = "_".join("stream" if streaming else "unary" for streaming in sides)
        inner: Any = getattr(handler, kind)

        async def one(request: Any, context: Any) -> Any:
            async with around(context) as call:
                response = await inner(request, context)
                self._check_size(call, response)
                return response

        async def many(request: Any, context: Any) -> AsyncIterator[Any]:
            async with around(context) as call:
                async for response in inner(request, context):
                    self._check_size(call, response)
                    yield response

        make: Any = getattr(grpc, f"{kind}_rpc_method_handler")
        behaviour = many if handler.response_streaming else one
        wrapped: Handler = make(behaviour, handler.request_deserializer, handler.response_serializer)
        return wrapped

    def _check_size(self, call: Call, response: Any) -> None:
        size = response.ByteSize()
        if size > self._max_message_bytes:
            raise ResourceExhaustedError(
                too_large(f"{call.name}: the answer", size, self._max_message_bytes),
                reason="MESSAGE_TOO_LARGE",
                limit=self._max_message_bytes,
            )
