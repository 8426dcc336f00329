"""Client of the generation service."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import cast

from rlctl.clients.requests import with_request_id
from rlctl.rpc.pool import Pool
from rlctl.v1 import generation_pb2 as pb
from rlctl.v1.generation_pb2_grpc import GenerationServiceStub


class GenerationClient:
    """Calls generation replicas through a pool; errors are `rlctl.core.errors`."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    async def generate(self, request: pb.GenerateRequest, *, timeout_s: float | None = None) -> pb.GenerateResponse:
        """Samples `request.sampling.n` responses; a replica that dies is replaced by another within the deadline."""
        answer = await self.pool.call(
            GenerationServiceStub, "Generate", with_request_id(request), timeout_s=timeout_s, retry=True
        )
        return cast(pb.GenerateResponse, answer)

    async def generate_stream(
        self, request: pb.GenerateRequest, *, timeout_s: float | None = None
    ) -> AsyncGenerator[pb.GenerateStreamResponse, None]:
        """One sample, piece by piece; closing the generator aborts the generation."""
        message = pb.GenerateStreamRequest(request=with_request_id(request))
        stream = self.pool.stream(GenerationServiceStub, "GenerateStream", message, timeout_s=timeout_s, retry=True)
        async with aclosing(stream):
            async for piece in stream:
                yield piece

    async def get_model(self, *, timeout_s: float | None = None) -> pb.GetModelResponse:
        """What one of the replicas serves."""
        answer = await self.pool.call(
            GenerationServiceStub, "GetModel", pb.GetModelRequest(), timeout_s=timeout_s, retry=True
        )
        return cast(pb.GetModelResponse, answer)

    async def generate_text(
        self,
        prompt: str | Sequence[tuple[str, str]],
        sampling: pb.SamplingParams | None = None,
        *,
        timeout_s: float | None = None,
    ) -> list[str]:
        """The texts of `sampling.n` responses to a text, or to a chat of (role, content) turns."""
        request = text_request(prompt, sampling)
        response = await self.generate(request, timeout_s=timeout_s)
        return [sample.text for sample in response.samples]

    async def stream_text(
        self,
        prompt: str | Sequence[tuple[str, str]],
        sampling: pb.SamplingParams | None = None,
        *,
        timeout_s: float | None = None,
    ) -> AsyncGenerator[str, None]:
        """The text of one response, piece by piece."""
        stream = self.generate_stream(text_request(prompt, sampling), timeout_s=timeout_s)
        async with aclosing(stream):
            async for piece in stream:
                yield piece.delta.text


def text_request(
    prompt: str | Sequence[tuple[str, str]], sampling: pb.SamplingParams | None = None
) -> pb.GenerateRequest:
    """The request for a plain text or a chat of (role, content) turns."""
    if isinstance(prompt, str):
        return pb.GenerateRequest(text=prompt, sampling=sampling)
    chat = pb.Chat(messages=[pb.ChatMessage(role=role, content=content) for role, content in prompt])
    return pb.GenerateRequest(chat=chat, sampling=sampling)
