"""Generation by a plain transformers model, where there is no vLLM. One thread owns the model; between two tokens it
takes new requests and the steps of a weight update.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from pathlib import Path
from typing import Any, TypeVar

import torch

from rlctl.core.errors import ConfigError, FailedPreconditionError, UnavailableError
from rlctl.generation.batch import Batch
from rlctl.generation.config import EngineConfig
from rlctl.generation.engine import Completion, ModelInfo, Sampling
from rlctl.generation.sequence import GrowingSequence
from rlctl.models.widen import widen_head
from rlctl.weights.bucket import Announcement
from rlctl.weights.group import Invitation, first_line
from rlctl.weights.receiver import Receiver

T = TypeVar("T")

logger = logging.getLogger(__name__)


class _Request:
    """The sequences of one request, and where their pieces go."""

    def __init__(self, sequences: list[GrowingSequence], *, streams: bool) -> None:
        self.sequences = sequences
        self.streams = streams
        self.loop = asyncio.get_running_loop()
        self.pieces: asyncio.Queue[list[Completion] | None] = asyncio.Queue()

    @property
    def finished(self) -> bool:
        return all(one.finish for one in self.sequences)

    def tell(self) -> None:
        """Hands out what there is: pieces as they come, or everything at the end."""
        if self.streams or self.finished:
            pieces = [one.piece() for one in self.sequences]
            self.loop.call_soon_threadsafe(self.pieces.put_nowait, pieces)

    def fail(self) -> None:
        self.loop.call_soon_threadsafe(self.pieces.put_nowait, None)


class TransformersEngine:
    """See `Engine`."""

    name = "transformers"
    workers = 1

    def __init__(self, config: EngineConfig, folder: Path, tokenizer: Any) -> None:
        self._config = config
        self._folder = folder
        self._tokenizer = tokenizer
        self._eos_ids: set[int] = set()
        self._shared = torch.Generator().manual_seed(config.seed)
        self._requests: list[_Request] = []
        self._orders: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._held = False
        self._ended = False
        self._fault: str | None = None
        self._version = 0
        self._missing: set[str] = set()
        self._receiver = Receiver(torch.device("cpu"))
        self._thread: threading.Thread | None = None

    async def load(self) -> None:
        await asyncio.to_thread(self._load)
        self._thread = threading.Thread(target=self._run, name="rlctl-generation", daemon=True)
        self._thread.start()

    def _load(self) -> None:
        from transformers import AutoModelForCausalLM

        from rlctl.models.names import places

        config = self._config
        if config.tensor_parallel != 1:
            raise ConfigError("tensor_parallel needs engine = 'vllm'")
        try:
            self._model: Any = AutoModelForCausalLM.from_pretrained(
                str(self._folder),
                dtype=getattr(torch, config.dtype),
                attn_implementation="sdpa",
                trust_remote_code=config.trust_remote_code,
            ).eval()
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError(f"cannot load the model in {self._folder}: {first_line(error)}") from error
        if config.head_dtype == "float32":
            widen_head(self._model)
        own = int(self._model.config.max_position_embeddings)
        if config.max_model_len is not None and config.max_model_len > own:
            raise ConfigError(f"max_model_len = {config.max_model_len}, but the model reaches {own} tokens")
        self.info = ModelInfo(config.max_model_len or own, int(self._model.config.vocab_size))
        for eos in (self._model.generation_config.eos_token_id, self._tokenizer.eos_token_id):
            self._eos_ids.update([] if eos is None else [eos] if isinstance(eos, int) else eos)
        self._batch = Batch(self._model, config.max_num_seqs)
        self._places = places(self._model)

    async def close(self) -> None:
        with self._wake:
            self._ended = True
            self._wake.notify()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    def fault(self) -> str | None:
        return self._fault

    def running(self) -> int:
        return sum(not one.finish for request in list(self._requests) for one in request.sequences)

    async def generate(
        self, request_id: str, prompt_ids: Sequence[int], sampling: Sampling, logprobs: bool
    ) -> list[Completion]:
        request = self._make(prompt_ids, sampling, logprobs, streams=False)
        async with aclosing(self._pieces(request)) as batches:
            return await anext(batches)

    async def stream(
        self, request_id: str, prompt_ids: Sequence[int], sampling: Sampling, logprobs: bool
    ) -> AsyncGenerator[Completion, None]:
        request = self._make(prompt_ids, sampling, logprobs, streams=True)
        async with aclosing(self._pieces(request)) as batches:
            async for pieces in batches:
                yield pieces[0]

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        return await self._order(lambda: self._score(token_ids))

    async def abort_all(self) -> None:
        for request in list(self._requests):
            self._abort(request)
            request.tell()

    async def join_group(self, invitation: Invitation) -> None:
        await self._order(lambda: self._receiver.join(invitation))

    async def begin_update(self) -> None:
        await self._order(self._begin)

    async def load_bucket(self, announcement: Announcement) -> None:
        await self._order(lambda: self._load_bucket(announcement))

    async def finish_update(self) -> None:
        await self._order(self._finish)

    async def activate(self, version: int) -> None:
        await self._order(lambda: self._activate(version))

    def _make(self, prompt_ids: Sequence[int], sampling: Sampling, logprobs: bool, *, streams: bool) -> _Request:
        sequences = []
        for index in range(sampling.n):
            generator = self._shared if sampling.seed is None else torch.Generator().manual_seed(sampling.seed + index)
            sequences.append(
                GrowingSequence(prompt_ids, sampling, generator, self._eos_ids, self._tokenizer, logprobs=logprobs)
            )
        return _Request(sequences, streams=streams)

    async def _pieces(self, request: _Request) -> AsyncGenerator[list[Completion], None]:
        """Pieces of a request until it has finished; leaving early aborts it."""
        with self._wake:
            self._need_alive()
            self._requests.append(request)
            self._batch.add(request.sequences)
            self._wake.notify()
        try:
            finished = False
            while not finished:
                pieces = await request.pieces.get()
                if pieces is None:
                    raise UnavailableError(f"the engine failed: {self._fault}", reason="ENGINE_FAILED")
                finished = all(piece.finish for piece in pieces)
                yield pieces
        finally:
            self._abort(request)
            with self._wake:
                self._requests.remove(request)

    def _abort(self, request: _Request) -> None:
        for one in request.sequences:
            one.finish = one.finish or "abort"

    async def _order(self, action: Callable[[], T]) -> T:
        """Has the engine's thread do something between two tokens."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(action())
            except Exception as error:
                future.set_exception(error)

        with self._wake:
            self._need_alive()
            self._orders.append(run)
            self._wake.notify()
        return await asyncio.wrap_future(future)

    def _need_alive(self) -> None:
        if self._thread is None or self._ended or self._fault is not None:
            raise UnavailableError(f"the engine {self._fault or 'is not running'}", reason="ENGINE_FAILED")

    @torch.inference_mode()
    def _run(self) -> None:
        """The engine's thread."""
        try:
            while self._wait():
                while self._orders:
                    self._orders.popleft()()
                if not self._held:
                    self._step()
        except Exception as error:
            logger.exception("the engine's thread failed")
            self._fault = f"{type(error).__name__}: {first_line(error)}"
            for request in list(self._requests):
                request.fail()

    def _wait(self) -> bool:
        """Returns when there is something to do; False at the end."""
        with self._wake:
            while not (self._ended or self._orders or (len(self._batch) and not self._held)):
                self._wake.wait()
            return not self._ended

    def _step(self) -> None:
        grown = {id(one) for one in self._batch.step(self._version)}
        for request in list(self._requests):
            if any(id(one) in grown for one in request.sequences):
                request.tell()

    def _score(self, token_ids: Sequence[int]) -> list[float]:
        tokens = torch.tensor([list(token_ids)])
        logprobs = self._model(input_ids=tokens, use_cache=False).logits[0, :-1].float().log_softmax(-1)
        scores: list[float] = logprobs.gather(-1, tokens[0, 1:, None])[:, 0].tolist()
        return scores

    def _begin(self) -> None:
        self._held = True
        self._missing = set(self._places)

    def _load_bucket(self, announcement: Announcement) -> None:
        for name, tensor in self._receiver.receive(announcement):
            place = self._places.get(name)
            if place is None or place.shape != tensor.shape:
                have = "no such weight" if place is None else f"the shape {list(place.shape)}"
                raise FailedPreconditionError(
                    f"{name} comes with the shape {list(tensor.shape)}, but the model has {have}; "
                    "trainer and replica must hold the same architecture",
                    reason="WEIGHTS_DO_NOT_FIT",
                )
            place.put(tensor)
            self._missing.discard(name)

    def _finish(self) -> None:
        if self._missing:
            raise FailedPreconditionError(
                f"the update lacks {len(self._missing)} weights, {min(self._missing)} among them", reason="INCOMPLETE"
            )

    def _activate(self, version: int) -> None:
        self._batch.forget()
        self._version = version
        self._held = False
