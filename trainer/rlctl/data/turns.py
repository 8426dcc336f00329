"""A chat's assistant turns: which text the model learns to write, and which it only reads.

    user: Hi\nassistant: Hello</s>user: Bye\nassistant: See you</s>
    ──────── read ──────┤learnt    ├───── read ────────┤learnt     ├

A turn is learnt with the token that ends it. The text before a turn is what the template writes as the prompt of
that turn, so that training and sampling see the same.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlctl.core.errors import ConfigError
from rlctl.data.template import Message, render

_PROBE = "Probe of the template"


@dataclass(frozen=True)
class Chat:
    """A chat cut into a prompt and what follows it."""

    prompt: str
    """All before the first learnt turn, without a BOS."""
    parts: list[tuple[str, bool]]
    """Texts behind the prompt, each with whether it is learnt."""
    needs_eos: bool
    """The template ends no turn with a special token: the tokenizer's EOS ends the last."""


class ChatCutter:
    """Cuts chats as one tokenizer's template writes them.

    A template with `{% generation %}` marks says itself what is learnt; for others the turns are found by the
    prompts that they answer.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._marked = re.search(r"\{%-?\s*generation\s*-?%\}", str(tokenizer.chat_template)) is not None
        self._end = _turn_end(tokenizer)

    def cut(self, messages: Sequence[Message], where: str, first: int = 0) -> Chat:
        """Learns the assistant's turns from message `first` on; the chat ends with one, and begins with none.

        Raises ConfigError where the template does not write a chat turn after turn.
        """
        assert messages[-1]["role"] == "assistant" and messages[0]["role"] != "assistant"
        turns = [index for index in range(first, len(messages)) if messages[index]["role"] == "assistant"]
        text = render(messages, self._tokenizer, where, generation_prompt=False)
        if self._marked:
            spans = self._marked_spans(messages, where)[-len(turns) :]
        else:
            spans = [self._span(text, messages, index, where) for index in turns]
        parts: list[tuple[str, bool]] = []
        at = spans[0][0]
        for start, end in spans:
            if start < at:
                raise ConfigError(f"{where}: {_NOT_TURN_BY_TURN}")
            if start > at:
                parts.append((text[at:start], False))
            parts.append((text[start:end], True))
            at = end
        return Chat(text[: spans[0][0]], parts, needs_eos=not self._end)

    def _span(self, text: str, messages: Sequence[Message], index: int, where: str) -> tuple[int, int]:
        """Where an assistant turn stands in the text of its chat, with the token that ends it."""
        before = render(messages[:index], self._tokenizer, where, generation_prompt=False)
        prompt = render(messages[:index], self._tokenizer, where, generation_prompt=True)
        # A prompt may open a block (`<think>`) that past turns are written without.
        start = len(shared_prefix(text, prompt))
        if start < len(before) or not text.startswith(before):
            raise ConfigError(f"{where}: {_NOT_TURN_BY_TURN}")
        content = messages[index]["content"]
        for said in (content, content.strip()) if isinstance(content, str) else ():
            if text.startswith(said, start):
                stop = start + len(said)
                break
        else:
            stop = start
            if not self._end:
                raise ConfigError(f"{where}: {_NOT_TURN_BY_TURN}")
        if not self._end:
            return start, stop
        found = text.find(self._end, stop)
        if found < 0:
            raise ConfigError(f"{where}: {_NOT_TURN_BY_TURN}")
        return start, found + len(self._end)

    def _marked_spans(self, messages: Sequence[Message], where: str) -> list[tuple[int, int]]:
        from transformers.utils.chat_template_utils import render_jinja_template

        tokenizer = self._tokenizer
        texts, marks = render_jinja_template(
            [list(messages)],
            chat_template=tokenizer.chat_template,
            return_assistant_tokens_mask=True,
            **tokenizer.special_tokens_map,
        )
        bos = tokenizer.bos_token or ""
        shift = len(bos) if bos and texts[0].startswith(bos) else 0
        text = texts[0][shift:]
        spans = []
        for start, end in marks[0]:
            start, end = start - shift, end - shift
            spans.append((start, end + len(self._end) if text.startswith(self._end, end) else end))
        if len(spans) != sum(message["role"] == "assistant" for message in messages):
            raise ConfigError(f"{where}: the chat template's generation marks are not one for each assistant turn")
        return spans


_NOT_TURN_BY_TURN = (
    "the chat template changes earlier turns when the chat goes on, so that what is learnt cannot be told; set "
    "chat_template to one with {% generation %} marks around the assistant's turns"
)


def shared_prefix(one: str, other: str) -> str:
    """What two texts begin with."""
    for place, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return one[:place]
    return min(one, other, key=len)


def _turn_end(tokenizer: Any) -> str:
    """The special token that the template writes behind an assistant's turn, or empty."""
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": _PROBE}]
    text = render(messages, tokenizer, "the chat template", generation_prompt=False)
    _, found, behind = text.rpartition(_PROBE)
    if not found:
        raise ConfigError("the chat template does not write the assistant's turns: set chat_template to one that does")
    special = {str(token) for token in tokenizer.all_special_tokens}
    special |= {str(token.content) for token in tokenizer.added_tokens_decoder.values() if token.special}
    places = [(behind.find(token), token) for token in special if token and token in behind]
    return min(places)[1] if places else ""
