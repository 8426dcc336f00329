"""What a generation engine is. Engines know no gRPC; two of them live here, one on vLLM and one on transformers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from rlctl.weights.bucket import Announcement
from rlctl.weights.group import Invitation

Finish = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample; validated, every default filled in."""

    n: int = 1
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps all."""
    min_p: float = 0.0
    max_tokens: int = 16
    """Prompt and response fit the context with it."""
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    """Sample i of the n draws from seed + i."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0


@dataclass(slots=True)
class Completion:
    """A response, or a piece of one."""

    text: str
    token_ids: list[int]
    logprobs: list[float]
    """One a token, under the distribution sampled from; empty unless asked for."""
    finish: Finish | None
    """None: more is to come."""
    versions: list[int] = field(default_factory=list)
    """Policy versions that made the tokens, oldest first; known at the end."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What an engine has loaded."""

    max_model_len: int
    """Prompt and response together, tokens."""
    vocab_size: int


class Engine(Protocol):
    """Generates and takes new weights. Methods raise RlctlErrors; cancelling a generation aborts it."""

    name: str
    """"vllm" or "transformers"."""
    workers: int
    """Processes that join a weight group."""
    info: ModelInfo
    """Set by `load`."""

    async def load(self) -> None:
        """Loads the model. Raises ConfigError with the mend."""

    async def close(self) -> None:
        """Frees everything; ends every process it started."""

    def fault(self) -> str | None:
        """Why the engine is dead, or None."""

    def running(self) -> int:
        """Responses in work or waiting."""

    async def generate(
        self, request_id: str, prompt_ids: Sequence[int], sampling: Sampling, logprobs: bool
    ) -> list[Completion]:
        """`sampling.n` whole responses."""

    def stream(
        self, request_id: str, prompt_ids: Sequence[int], sampling: Sampling, logprobs: bool
    ) -> AsyncGenerator[Completion, None]:
        """One response, piece by piece; the last piece has `finish` and `versions`."""

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        """log p(token_ids[i] | token_ids[:i]) for i >= 1 at temperature 1; comes before any other request.

        Without tokens before them to cache: what the weights of now say.
        """

    async def abort_all(self) -> None:
        """Ends every request with finish "abort"."""

    async def join_group(self, invitation: Invitation) -> None:
        """Every worker joins; worker i as rank `invitation.rank` + i."""

    async def begin_update(self) -> None:
        """Holds all requests where they are and makes ready to load; also after an update that broke off."""

    async def load_bucket(self, announcement: Announcement) -> None:
        """Receives, checks and loads the bucket that is broadcast now."""

    async def finish_update(self) -> None:
        """Puts the weights in place. Raises FailedPreconditionError when some are missing."""

    async def activate(self, version: int) -> None:
        """Drops every cached prefix, labels tokens from now on with `version`, and goes on with the held requests."""
