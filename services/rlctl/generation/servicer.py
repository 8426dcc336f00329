"""GenerationService: translates, and asks the replica."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from rlctl.core.errors import DeadlineError, InvalidArgumentError
from rlctl.generation.config import GenerationConfig
from rlctl.generation.convert import prompt_of, sampling_of, to_sample
from rlctl.generation.replica import Replica
from rlctl.v1 import generation_pb2 as pb
from rlctl.v1.generation_pb2_grpc import GenerationServiceServicer


class GenerationServicer(GenerationServiceServicer):
    """See generation.proto. The call's end, by whatever cause, cancels the method and with it the generation."""

    def __init__(self, config: GenerationConfig) -> None:
        self._config = config
        self._replica: Replica | None = None
        self._tokenizer: Any = None

    def serve(self, replica: Replica, tokenizer: Any) -> None:
        """Called once the model is loaded; no call comes before."""
        self._replica, self._tokenizer = replica, tokenizer

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> pb.GenerateResponse:
        assert self._replica is not None
        info = self._replica.engine.info
        request_id = request.request_id or uuid.uuid4().hex
        prompt_ids = await prompt_of(request, self._tokenizer, info)
        sampling = sampling_of(request.sampling, info, len(prompt_ids))
        try:
            async with asyncio.timeout(self._config.request_timeout_s):
                completions = await self._replica.generate(request_id, prompt_ids, sampling, request.return_logprobs)
        except TimeoutError:
            raise self._late() from None
        return pb.GenerateResponse(
            request_id=request_id, prompt_token_ids=prompt_ids, samples=[to_sample(one) for one in completions]
        )

    async def GenerateStream(
        self, request: pb.GenerateStreamRequest, context: Any
    ) -> AsyncIterator[pb.GenerateStreamResponse]:
        assert self._replica is not None
        info = self._replica.engine.info
        inner = request.request
        prompt_ids = await prompt_of(inner, self._tokenizer, info, "request.")
        sampling = sampling_of(inner.sampling, info, len(prompt_ids), "request.")
        if sampling.n != 1:
            raise InvalidArgumentError("request.sampling.n: a stream has one sample", field="request.sampling.n")
        request_id = inner.request_id or uuid.uuid4().hex
        end = asyncio.get_running_loop().time() + self._config.request_timeout_s
        async with aclosing(self._replica.stream(request_id, prompt_ids, sampling, inner.return_logprobs)) as pieces:
            while True:
                try:
                    async with asyncio.timeout_at(end):
                        piece = await anext(pieces, None)
                except TimeoutError:
                    raise self._late() from None
                if piece is None:
                    return
                yield pb.GenerateStreamResponse(delta=to_sample(piece))

    async def GetModel(self, request: pb.GetModelRequest, context: Any) -> pb.GetModelResponse:
        replica = self._replica
        assert replica is not None
        return pb.GetModelResponse(
            model=self._config.model,
            engine=replica.engine.name,
            dtype=self._config.dtype,
            max_model_len=replica.engine.info.max_model_len,
            vocab_size=replica.engine.info.vocab_size,
            policy_version=replica.version,
            prompts_generated=replica.prompts_generated,
            tokens_generated=replica.tokens_generated,
        )

    def _late(self) -> DeadlineError:
        limit_s = self._config.request_timeout_s
        return DeadlineError(f"the request took longer than request_timeout_s = {limit_s:g} s")
