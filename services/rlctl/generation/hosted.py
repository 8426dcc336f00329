"""The generation service as `rlctl.rpc.service` runs it."""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path
from typing import Any

import grpc.aio

from rlctl.generation import heartbeat
from rlctl.generation.config import EngineConfig, GenerationConfig
from rlctl.generation.engine import Engine
from rlctl.generation.replica import Replica, State
from rlctl.generation.servicer import GenerationServicer
from rlctl.generation.updates import Updates
from rlctl.generation.weights_servicer import WeightsServicer
from rlctl.rpc.service import Health
from rlctl.v1 import generation_pb2, weights_pb2
from rlctl.v1.generation_pb2_grpc import add_GenerationServiceServicer_to_server
from rlctl.v1.weights_pb2_grpc import add_WeightsServiceServicer_to_server


class GenerationHosted:
    """Serves generation and weights from one engine; ends the process when the engine is dead."""

    def __init__(self, config: GenerationConfig) -> None:
        self._config = config
        self._generation = GenerationServicer(config)
        self._weights = WeightsServicer()
        self._engine: Engine | None = None
        self._replica: Replica | None = None
        self._updates: Updates | None = None

    def register(self, server: grpc.aio.Server) -> list[str]:
        add_GenerationServiceServicer_to_server(self._generation, server)
        add_WeightsServiceServicer_to_server(self._weights, server)
        files = (generation_pb2.DESCRIPTOR, weights_pb2.DESCRIPTOR)
        return [service.full_name for file in files for service in file.services_by_name.values()]

    async def load(self, health: Health) -> None:
        """Loads the model and generates a token, so that what cannot generate is never SERVING."""
        folder, tokenizer = await asyncio.to_thread(_prepare, self._config)
        self._engine = make_engine(self._config, folder, tokenizer)
        await self._engine.load()
        replica = Replica(self._engine, health)
        updates = Updates(replica, self._config.weights.timeout_s)
        await heartbeat.prove(self._engine, self._config.health_timeout_s)
        self._generation.serve(replica, tokenizer)
        self._weights.serve(updates, self._engine.workers)
        self._replica, self._updates = replica, updates
        await replica.become(State.BEHIND if self._config.catch_up else State.SERVING)

    async def watch(self) -> None:
        """Raises InternalError when the engine is dead or does not generate any more."""
        assert self._replica is not None
        await heartbeat.watch(self._replica, self._config.health_interval_s, self._config.health_timeout_s)

    async def close(self) -> None:
        if self._updates is not None:
            self._updates.end()
        if self._engine is not None:
            await self._engine.close()


def make_engine(config: EngineConfig, folder: Path, tokenizer: Any) -> Engine:
    """The engine of the settings, not loaded yet."""
    kind = config.engine
    if kind == "auto":
        kind = "vllm" if importlib.util.find_spec("vllm") is not None else "transformers"
    if kind == "vllm":
        from rlctl.generation.vllm_engine import VllmEngine

        return VllmEngine(config, folder, tokenizer)
    from rlctl.generation.transformers_engine import TransformersEngine

    return TransformersEngine(config, folder, tokenizer)


def _prepare(config: EngineConfig) -> tuple[Path, Any]:
    from rlctl.models.load import load_tokenizer
    from rlctl.models.source import resolve

    folder = resolve(config.model, config.revision)
    return folder, load_tokenizer(folder, config.trust_remote_code)
