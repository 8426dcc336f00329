"""CriticService: translation alone."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import grpc.aio

from rlctl.core.errors import InvalidArgumentError, RlctlError, UnavailableError
from rlctl.critic.config import CriticConfig
from rlctl.critic.engine import CriticEngine
from rlctl.learner import wire
from rlctl.learner.sequence import Sequence
from rlctl.rpc.health import Health
from rlctl.v1 import critic_pb2 as pb
from rlctl.v1.critic_pb2_grpc import CriticServiceServicer, add_CriticServiceServicer_to_server

logger = logging.getLogger(__name__)
T = TypeVar("T")
_TAG = re.compile(r"[A-Za-z0-9_\-][A-Za-z0-9_.\-]{0,63}")


class CriticHosted(CriticServiceServicer):
    """The critic service as `rlctl.rpc.service` runs it; the engine lives in a thread of its own."""

    def __init__(self, config: CriticConfig) -> None:
        self._config = config
        self._thread = ThreadPoolExecutor(1, "critic")
        self._loaded: CriticEngine | None = None

    def register(self, server: grpc.aio.Server) -> list[str]:
        add_CriticServiceServicer_to_server(self, server)
        return [pb.DESCRIPTOR.services_by_name["CriticService"].full_name]

    async def load(self, health: Health) -> None:
        self._loaded = await self._in_thread(lambda: CriticEngine(self._config))

    async def close(self) -> None:
        if self._loaded is not None:
            await self._in_thread(self._loaded.close)
        self._thread.shutdown()

    async def ComputeValues(self, request: pb.ComputeValuesRequest, context: Any) -> pb.ComputeValuesResponse:
        engine = self._engine
        sequences = [
            wire.sequence(tokens, engine.limits, f"sequences[{index}]")
            for index, tokens in enumerate(request.sequences)
        ]
        values = await self._in_thread(lambda: engine.values(request.epoch, sequences))
        return pb.ComputeValuesResponse(values=wire.token_floats(values))

    async def Train(self, request_iterator: AsyncIterator[pb.TrainRequest], context: Any) -> pb.TrainResponse:
        engine = self._engine
        header, sequences = await _batch(request_iterator, engine.limits)
        metrics = await self._in_thread(lambda: engine.train(header.epoch, header.step, header.minibatch, sequences))
        return pb.TrainResponse(metrics=metrics)

    async def SaveCheckpoint(self, request: pb.SaveCheckpointRequest, context: Any) -> pb.SaveCheckpointResponse:
        engine = self._engine
        tag, keep = _tag(request.tag, "tag"), [_tag(tag, f"keep[{index}]") for index, tag in enumerate(request.keep)]
        await self._in_thread(lambda: engine.save(request.epoch, tag, keep))
        return pb.SaveCheckpointResponse()

    async def LoadCheckpoint(self, request: pb.LoadCheckpointRequest, context: Any) -> pb.LoadCheckpointResponse:
        engine = self._engine
        tag = _tag(request.tag, "tag") if request.tag else ""
        await self._in_thread(lambda: engine.restore(request.epoch, tag))
        return pb.LoadCheckpointResponse()

    @property
    def _engine(self) -> CriticEngine:
        if self._loaded is None:
            raise UnavailableError("the critic is still loading")
        return self._loaded

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Runs `work` to its end, even when the caller goes away: the ranks stay in step."""
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._thread, _or_die, work))


def _or_die(work: Callable[[], T]) -> T:
    """A fault that is no answer to the caller leaves the ranks out of step: the process ends, loudly."""
    try:
        return work()
    except RlctlError:
        raise
    except BaseException:
        logger.critical("the critic failed, or one of its ranks died; this process ends", exc_info=True)
        logging.shutdown()
        os._exit(1)


async def _batch(parts: AsyncIterator[pb.TrainRequest], limits: wire.Limits) -> tuple[pb.TrainHeader, list[Sequence]]:
    header: pb.TrainHeader | None = None
    sequences: list[Sequence] = []
    async for part in parts:
        match part.WhichOneof("part"):
            case "header" if header is None:
                header = part.header
            case "sequences" if header is not None:
                for message in part.sequences.sequences:
                    sequences.append(wire.train_sequence(message, limits, f"sequences[{len(sequences)}]"))
            case _:
                raise InvalidArgumentError("the first part is the header, and the only one", field="header")
    if header is None:
        raise InvalidArgumentError("the stream has no header", field="header")
    if len(sequences) != header.num_sequences:
        raise InvalidArgumentError(
            f"header.num_sequences is {header.num_sequences}, but {len(sequences)} sequences came",
            field="header.num_sequences",
        )
    if not any(bool(sequence.mask.any()) for sequence in sequences):
        raise InvalidArgumentError("no sequence has a trained token", field="sequences.mask")
    return header, sequences


def _tag(tag: str, field: str) -> str:
    if not _TAG.fullmatch(tag):
        raise InvalidArgumentError(f"{field} {tag!r} does not match [A-Za-z0-9_.-]{{1,64}}", field=field)
    return tag
