"""Generation by vLLM, embedded as AsyncLLM; its engine and workers are processes of their own."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import torch

from rlctl.core import errors
from rlctl.core.errors import ConfigError, InternalError, RlctlError, UnavailableError
from rlctl.generation import lifeline
from rlctl.generation.config import EngineConfig
from rlctl.generation.engine import Completion, Finish, ModelInfo, Sampling
from rlctl.weights.bucket import Announcement
from rlctl.weights.group import Invitation, first_line

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

logger = logging.getLogger(__name__)

#: Label of the weights as loaded from disk.
FIRST_VERSION = "0"

#: Before all other requests.
_FIRST = -1


class VllmEngine:
    """See `Engine`."""

    name = "vllm"

    def __init__(self, config: EngineConfig, folder: Path, tokenizer: Any) -> None:
        self.workers = config.tensor_parallel
        self._config = config
        self._folder = folder
        self._tokenizer = tokenizer
        self._llm: AsyncLLM | None = None
        self._requests: set[str] = set()
        self._count = 0

    async def load(self) -> None:
        _set_environment()
        try:
            # Takes seconds to minutes, in which the server answers health checks.
            await asyncio.to_thread(self._start)
        except (ValueError, NotImplementedError) as error:
            raise ConfigError(self._not_started(error), reason="ENGINE_NOT_STARTED") from error
        except (RuntimeError, OSError) as error:
            raise UnavailableError(self._not_started(error), reason="ENGINE_NOT_STARTED") from error
        llm = self._engine()
        self.info = ModelInfo(llm.model_config.max_model_len, llm.model_config.hf_text_config.vocab_size)
        await llm.update_weight_version(FIRST_VERSION)

    def _not_started(self, error: Exception) -> str:
        return f"vLLM cannot serve {self._folder}: {first_line(error)} (its own words stand above in the log)"

    def _start(self) -> None:
        on_cpu = not torch.cuda.is_available()
        if on_cpu:
            _check_memory(self._config.kv_cache_mb)
        from vllm.config import WeightTransferConfig
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        from rlctl.generation.vllm_worker import BACKEND, WorkerExtension

        config = self._config
        optional: dict[str, Any] = {"gpu_memory_utilization": config.gpu_memory_utilization}
        if on_cpu:
            optional = {"kv_cache_memory_bytes": config.kv_cache_mb << 20}
        if config.max_model_len is not None:
            optional["max_model_len"] = config.max_model_len
        arguments = AsyncEngineArgs(
            model=str(self._folder),
            dtype=config.dtype,
            seed=config.seed,
            max_num_seqs=config.max_num_seqs,
            tensor_parallel_size=config.tensor_parallel,
            enforce_eager=config.enforce_eager,
            enable_prefix_caching=config.enable_prefix_caching,
            trust_remote_code=config.trust_remote_code,
            hf_overrides={"head_dtype": config.head_dtype},
            # After temperature, penalties and cut-offs: what the tokens were sampled from.
            logprobs_mode="processed_logprobs",
            scheduling_policy="priority",
            disable_log_stats=True,
            weight_transfer_config=WeightTransferConfig(backend=BACKEND),
            worker_extension_cls=f"{WorkerExtension.__module__}.{WorkerExtension.__name__}",
            **optional,
        )
        settings = arguments.create_engine_config()
        if on_cpu:
            _check_head_size(settings.model_config.get_head_size())
            if config.tensor_parallel == 1:
                # vLLM would have its one worker in a process of its own, to set threads there, which `threads` has
                # done; what the two say to each other takes a fifth of the time from a small model.
                settings.parallel_config.distributed_executor_backend = "uni"
        # Not returned: a thread keeps what it returned last, and this must be gone before the interpreter ends.
        self._llm = AsyncLLM.from_vllm_config(settings, disable_log_stats=True)

    async def close(self) -> None:
        if self._llm is not None:
            await asyncio.to_thread(self._llm.shutdown, 1.0)
            self._llm = None

    def fault(self) -> str | None:
        if self._llm is not None and self._llm.errored:
            return "vLLM's engine process is dead; its last words stand above in the log"
        return None

    def running(self) -> int:
        return 0 if self._llm is None else self._llm.get_num_unfinished_requests()

    async def generate(
        self, request_id: str, prompt_ids: Sequence[int], sampling: Sampling, logprobs: bool
    ) -> list[Completion]:
        from vllm.sampling_params import RequestOutputKind

        # Only stop texts need the text while it grows.
        params = _params(sampling, logprobs, RequestOutputKind.FINAL_ONLY, detokenize=bool(sampling.stop))
        outputs = (await self._last(request_id, prompt_ids, params)).outputs
        outputs = sorted(outputs, key=lambda output: output.index)
        return [self._completion(output, params.detokenize) for output in outputs]

    async def stream(
        self, request_id: str, prompt_ids: Sequence[int], sampling: Sampling, logprobs: bool
    ) -> AsyncGenerator[Completion, None]:
        from vllm.sampling_params import RequestOutputKind

        params = _params(sampling, logprobs, RequestOutputKind.DELTA, detokenize=True)
        async with aclosing(self._run(request_id, prompt_ids, params)) as outputs:
            async for output in outputs:
                yield self._completion(output.outputs[0], True)

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            max_tokens=1, prompt_logprobs=0, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY
        )
        last = await self._last("score", token_ids, params, priority=_FIRST)
        if last.prompt_logprobs is None:
            raise UnavailableError("scoring was aborted")
        positions = zip(token_ids[1:], last.prompt_logprobs[1:], strict=True)
        return [position[token].logprob for token, position in positions]

    async def abort_all(self) -> None:
        if self._requests:
            await self._engine().abort(list(self._requests))

    async def join_group(self, invitation: Invitation) -> None:
        fields = ("group", "backend", "host", "port", "world_size", "rank", "timeout_s")
        await self._call("rlctl_join", {name: getattr(invitation, name) for name in fields})

    async def begin_update(self) -> None:
        await self._engine().pause_generation(mode="keep", clear_cache=False)
        await self._call("rlctl_begin")

    async def load_bucket(self, announcement: Announcement) -> None:
        await self._call(
            "rlctl_load",
            {
                "index": announcement.index,
                "names": [entry.name for entry in announcement.entries],
                "dtypes": [entry.dtype_name for entry in announcement.entries],
                "shapes": [list(entry.shape) for entry in announcement.entries],
                "num_bytes": announcement.num_bytes,
                "digest": announcement.digest,
            },
        )

    async def finish_update(self) -> None:
        await self._call("rlctl_finish")

    async def activate(self, version: int) -> None:
        llm = self._engine()
        # Held requests are computed anew from their tokens, or their past would be that of the old weights.
        if not await llm.reset_prefix_cache(reset_running_requests=True):
            raise InternalError("vLLM kept prefixes of the old weights", reason="CACHE_NOT_RESET")
        await llm.update_weight_version(str(version))
        await llm.resume_generation()

    async def _last(self, request_id: str, prompt_ids: Sequence[int], params: Any, priority: int = 0) -> Any:
        """The final output of one request."""
        output: Any = None
        async with aclosing(self._run(request_id, prompt_ids, params, priority)) as outputs:
            async for one in outputs:
                output = one
        return output

    async def _run(
        self, request_id: str, prompt_ids: Sequence[int], params: Any, priority: int = 0
    ) -> AsyncGenerator[Any, None]:
        """Outputs of one request, under a name of its own: callers may use a name twice."""
        from vllm.inputs import tokens_input
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        self._count += 1
        own = f"{self._count}-{request_id}"
        self._requests.add(own)
        outputs = self._engine().generate(tokens_input(list(prompt_ids)), params, own, priority=priority)
        try:
            async for output in outputs:
                yield output
        except (EngineDeadError, EngineGenerateError) as error:
            raise UnavailableError(f"vLLM's engine failed: {first_line(error)}", reason="ENGINE_FAILED") from error
        finally:
            self._requests.discard(own)
            await outputs.aclose()

    async def _call(self, method: str, *args: Any) -> None:
        """Calls a method of WorkerExtension in every worker and raises the first error."""
        for answer in await self._engine().collective_rpc(method, args=args):
            if answer is not None:
                kind, reason, message = answer
                raise getattr(errors, kind, RlctlError)(message, reason=reason)

    def _engine(self) -> AsyncLLM:
        if self._llm is None:
            raise UnavailableError("the model is not loaded")
        return self._llm

    def _completion(self, output: Any, has_text: bool) -> Completion:
        token_ids = list(output.token_ids)
        # An abort that comes before the first token has no list at all.
        logprobs = [] if not output.logprobs else [output.logprobs.logprobs[i] for i in output.logprobs.start_indices]
        text = output.text if has_text else self._tokenizer.decode(token_ids, skip_special_tokens=True)
        finish: Finish | None = None
        if output.finish_reason is not None:
            finish = output.finish_reason if output.finish_reason in ("stop", "length") else "abort"
        versions = list(dict.fromkeys(int(span.version) for span in output.weight_versions or []))
        return Completion(text, token_ids, logprobs, finish, versions)


def _params(sampling: Sampling, logprobs: bool, kind: Any, *, detokenize: bool) -> Any:
    from vllm import SamplingParams

    return SamplingParams(
        n=sampling.n,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        max_tokens=sampling.max_tokens,
        stop=list(sampling.stop),
        stop_token_ids=list(sampling.stop_token_ids),
        ignore_eos=sampling.ignore_eos,
        seed=sampling.seed,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        # 0: of the sampled token alone.
        logprobs=0 if logprobs else None,
        flat_logprobs=True,
        detokenize=detokenize,
        output_kind=kind,
    )


def _set_environment() -> None:
    """Before vLLM is imported. What the user has set stays."""
    lifeline.announce()
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    # OMP_NUM_THREADS, set from `threads`, counts; vLLM's own choice would pin every service to the same core.
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")


def _check_memory(kv_cache_mb: int) -> None:
    free = psutil.virtual_memory().available >> 20
    if kv_cache_mb > free:
        raise ConfigError(
            f"kv_cache_mb = {kv_cache_mb:,} MiB, but only {free:,} MiB of memory are free; set a smaller one"
        )


def _check_head_size(size: int) -> None:
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    sizes = CPUAttentionBackend.get_supported_head_sizes()
    if size not in sizes:
        raise ConfigError(
            f"vLLM's attention on CPUs has no heads of {size}, only of {', '.join(map(str, sizes))}; "
            "set engine = 'transformers' for this model"
        )
