"""A response that grows token by token: when it ends, and its text so far."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from rlctl.generation.engine import Completion, Finish, Sampling

_REPLACEMENT = "�"


class GrowingSequence:
    """One of the n responses of a request."""

    def __init__(
        self,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        generator: torch.Generator,
        eos_ids: Collection[int],
        tokenizer: Any,
        *,
        logprobs: bool,
    ) -> None:
        self.prompt_ids = list(prompt_ids)
        self.sampling = sampling
        self.generator = generator
        self.response_ids: list[int] = []
        self.finish: Finish | None = None
        self.versions: list[int] = []
        self._ends = set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else set(eos_ids))
        self._tokenizer = tokenizer
        self._wants_logprobs = logprobs
        self._logprobs: list[float] = []
        self._text: str | None = None
        self._given_tokens = 0
        self._given_characters = 0

    def append(self, token: int, logprob: float, version: int) -> None:
        """Takes a token, and sees whether the response ends with it."""
        self.response_ids.append(token)
        self._text = None
        if self._wants_logprobs:
            self._logprobs.append(logprob)
        if version not in self.versions:
            self.versions.append(version)
        if token in self._ends or self._stop_text() is not None:
            self.finish = "stop"
        elif len(self.response_ids) >= self.sampling.max_tokens:
            self.finish = "length"

    def piece(self) -> Completion:
        """What came since the last piece. Characters that the next token may change are held back."""
        text = self._readable()
        begin_token, begin_character = self._given_tokens, self._given_characters
        self._given_tokens = len(self.response_ids)
        self._given_characters = max(begin_character, len(text))
        return Completion(
            text[begin_character:],
            self.response_ids[begin_token:],
            self._logprobs[begin_token:],
            self.finish,
            list(self.versions) if self.finish else [],
        )

    def _decoded(self) -> str:
        if self._text is None:
            self._text = str(self._tokenizer.decode(self.response_ids, skip_special_tokens=True))
        return self._text

    def _stop_text(self) -> int | None:
        """Where the first stop text begins."""
        if not self.sampling.stop:
            return None
        places = [place for stop in self.sampling.stop if (place := self._decoded().find(stop)) >= 0]
        return min(places, default=None)

    def _readable(self) -> str:
        text = self._decoded()
        place = self._stop_text()
        if place is not None:
            return text[:place]
        if self.finish is None:
            text = text.rstrip(_REPLACEMENT)
            # The beginning of a stop text may be standing at the end.
            text = text[: len(text) - max((len(stop) - 1 for stop in self.sampling.stop), default=0)]
        return text
