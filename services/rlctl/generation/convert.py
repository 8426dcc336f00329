"""Messages of `rlctl.v1.generation` to what engines take, and back. Everything a caller can get wrong is found here,
by field, before an engine sees it: an engine that meets a wrong value may die of it.
"""

from __future__ import annotations

import asyncio
import math
from typing import Any

from rlctl.core.errors import InvalidArgumentError
from rlctl.generation.engine import Completion, Finish, ModelInfo, Sampling
from rlctl.v1 import generation_pb2 as pb

ROLES = ("system", "user", "assistant")

#: Samples of one request at most; more is asked for in several.
MAX_SAMPLES = 1024
MAX_STOPS = 64
MAX_STOP_CHARACTERS = 256
#: Below it, but for 0, the quotients overflow float32's useful range; above 2 nothing but noise is left.
MIN_TEMPERATURE, MAX_TEMPERATURE = 0.01, 2.0
#: Engines keep seeds, and seed + index of the sample, in 64 signed bits.
MAX_SEED = 2**63 - 1 - MAX_SAMPLES

#: Texts longer than this are tokenised in a thread, so that other calls go on.
_LONG_TEXT = 4096

_FINISH: dict[Finish, pb.FinishReason] = {
    "stop": pb.FINISH_REASON_STOP,
    "length": pb.FINISH_REASON_LENGTH,
    "abort": pb.FINISH_REASON_ABORT,
}


async def prompt_of(request: pb.GenerateRequest, tokenizer: Any, info: ModelInfo, prefix: str = "") -> list[int]:
    """The prompt's token ids; there is room for one more. Raises InvalidArgumentError."""
    kind = request.WhichOneof("prompt")
    if kind is None:
        raise _invalid(prefix, "prompt", "give one of text, chat and tokens")
    if kind == "tokens":
        ids = list(request.tokens.ids)
        wrong = next((token for token in ids if token >= info.vocab_size), None)
        if wrong is not None:
            raise _invalid(prefix, "tokens", f"token id {wrong} is not below the vocabulary's {info.vocab_size}")
    elif kind == "chat":
        text = _render(request.chat, tokenizer, prefix)
        ids = await _tokenize(tokenizer, text, special=False)
    else:
        ids = await _tokenize(tokenizer, request.text, special=True)
    if not ids:
        raise _invalid(prefix, kind, "the prompt has no tokens")
    if len(ids) >= info.max_model_len:
        raise _invalid(
            prefix,
            kind,
            f"the prompt has {len(ids)} tokens; prompt and response together have {info.max_model_len} at most",
        )
    return ids


def sampling_of(params: pb.SamplingParams, info: ModelInfo, prompt_length: int, prefix: str = "") -> Sampling:
    """Checked and completed. Raises InvalidArgumentError."""

    def need(good: bool, field: str, message: str) -> None:
        if not good:
            raise _invalid(prefix, f"sampling.{field}", message)

    default = Sampling()
    n = params.n if params.HasField("n") else default.n
    temperature = params.temperature if params.HasField("temperature") else default.temperature
    top_p = params.top_p if params.HasField("top_p") else default.top_p
    repetition = params.repetition_penalty if params.HasField("repetition_penalty") else default.repetition_penalty
    room = info.max_model_len - prompt_length
    max_tokens = params.max_tokens if params.HasField("max_tokens") else room
    need(1 <= n <= MAX_SAMPLES, "n", f"must be from 1 to {MAX_SAMPLES}, not {n}")
    # float32 has no 0.01: what a caller wrote so must pass.
    need(
        temperature == 0 or MIN_TEMPERATURE * 0.999 <= temperature <= MAX_TEMPERATURE,
        "temperature",
        f"must be 0 (greedy) or from {MIN_TEMPERATURE:g} to {MAX_TEMPERATURE:g}, not {temperature:g}",
    )
    need(n == 1 or temperature > 0, "n", "must be 1 when temperature is 0: greedy responses are all the same")
    need(0 < top_p <= 1, "top_p", f"must be above 0 and at most 1, not {top_p:g}")
    need(0 <= params.min_p < 1, "min_p", f"must be from 0 to below 1, not {params.min_p:g}")
    need(max_tokens >= 1, "max_tokens", "must be at least 1")
    for name in ("presence_penalty", "frequency_penalty"):
        value = getattr(params, name)
        need(-2 <= value <= 2, name, f"must be from -2 to 2, not {value:g}")
    need(
        math.isfinite(repetition) and 0 < repetition <= 10,
        "repetition_penalty",
        f"must be above 0 and at most 10, not {repetition:g}",
    )
    need(len(params.stop) <= MAX_STOPS, "stop", f"has {len(params.stop)} texts; at most {MAX_STOPS}")
    for text in params.stop:
        need(
            0 < len(text) <= MAX_STOP_CHARACTERS, "stop", f"a stop text has from 1 to {MAX_STOP_CHARACTERS} characters"
        )
    need(len(params.stop_token_ids) <= MAX_STOPS, "stop_token_ids", f"at most {MAX_STOPS}")
    for token in params.stop_token_ids:
        need(token < info.vocab_size, "stop_token_ids", f"{token} is not below the vocabulary's {info.vocab_size}")
    need(params.seed <= MAX_SEED, "seed", f"must be at most {MAX_SEED}")
    return Sampling(
        n=n,
        temperature=max(temperature, MIN_TEMPERATURE) if temperature else 0.0,
        top_p=top_p,
        top_k=min(params.top_k, info.vocab_size),
        min_p=params.min_p,
        max_tokens=min(max_tokens, room),
        stop=tuple(params.stop),
        stop_token_ids=tuple(params.stop_token_ids),
        ignore_eos=params.ignore_eos,
        seed=params.seed if params.HasField("seed") else None,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=repetition,
    )


def to_sample(completion: Completion) -> pb.Sample:
    return pb.Sample(
        text=completion.text,
        token_ids=completion.token_ids,
        logprobs=completion.logprobs,
        finish_reason=_FINISH[completion.finish] if completion.finish else pb.FINISH_REASON_UNSPECIFIED,
        policy_versions=completion.versions,
    )


def _render(chat: pb.Chat, tokenizer: Any, prefix: str) -> str:
    messages = []
    for index, message in enumerate(chat.messages):
        if message.role not in ROLES:
            raise _invalid(prefix, f"chat.messages[{index}].role", f"{message.role!r} is none of {', '.join(ROLES)}")
        messages.append({"role": message.role, "content": message.content})
    if not messages:
        raise _invalid(prefix, "chat.messages", "the chat is empty")
    if not tokenizer.chat_template:
        raise _invalid(prefix, "chat", "this model has no chat template; send text or tokens")
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    except Exception as error:  # A template raises whatever it likes about chats it does not take.
        raise _invalid(prefix, "chat", f"the model's chat template refuses it: {error}") from error


async def _tokenize(tokenizer: Any, text: str, *, special: bool) -> list[int]:
    def encode() -> list[int]:
        return list(tokenizer(text, add_special_tokens=special)["input_ids"])

    return await asyncio.to_thread(encode) if len(text) > _LONG_TEXT else encode()


def _invalid(prefix: str, field: str, message: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{prefix}{field}: {message}", field=prefix + field)
