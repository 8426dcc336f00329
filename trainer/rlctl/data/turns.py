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
        special = {str(token) for token in tokenizer.all_special_tokens}
        special |= {str(token.content) for token in tokenizer.added_tokens_decoder.values() if token.special}
        self._special = sorted(special - {""})
        self._end = _turn_end(tokenizer, self._special)

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
        if not text.startswith(before):
            # Some templates end whatever is no prompt with an EOS.
            before = before.removesuffix(self._tokenizer.eos_token or "")
        start = self._prompt_end(text, messages, index, where)
        if start < len(before) or not text.startswith(before):
            raise ConfigError(f"{where}: {_NOT_TURN_BY_TURN}")
        content = messages[index]["content"]
        said = content.strip() if isinstance(content, str) else ""
        place = text.find(said, start) if said else -1
        if self._end and place > text.find(self._end, start):
            # The template writes something else, and these words stand in a later turn.
            place = -1
        if place < 0 and not self._end:
            raise ConfigError(f"{where}: {_NOT_TURN_BY_TURN}")
        if not self._end:
            return start, place + len(said)
        if place < 0:
            end, stop = self._end, start
        else:
            # The last turn of a chat may end with another token than those before it.
            stop = place + len(said)
            blank = len(text[stop:]) - len(text[stop:].lstrip())
            end = next((token for token in self._special if text.startswith(token, stop + blank)), self._end)
        found = text.find(end, stop)
        if found < 0:
            raise ConfigError(f"{where}: {_NOT_TURN_BY_TURN}")
        return start, found + len(end)

    def _prompt_end(self, text: str, messages: Sequence[Message], index: int, where: str) -> int:
        """How far a chat is the prompt of one of its turns, which may open a block (`<think>`) that past turns are
        written without."""
        return len(shared_prefix(text, render(messages[:index], self._tokenizer, where, generation_prompt=True)))

    def _marked_spans(self, messages: Sequence[Message], where: str) -> list[tuple[int, int]]:
        """The template's own marks, without the turn's header and what follows its end where they take that in."""
        from transformers.utils.chat_template_utils import render_jinja_template

        tokenizer = self._tokenizer
        texts, marks = render_jinja_template(
            [list(messages)],
            chat_template=tokenizer.chat_template,
            return_assistant_tokens_mask=True,
            **tokenizer.special_tokens_map,
        )
        turns = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
        if len(marks[0]) != len(turns):
            raise ConfigError(f"{where}: the chat template's generation marks are not one for each assistant turn")
        bos = tokenizer.bos_token or ""
        shift = len(bos) if bos and texts[0].startswith(bos) else 0
        text = texts[0][shift:]
        spans = []
        for index, (start, end) in zip(turns, marks[0], strict=True):
            start, end = start - shift, end - shift
            prompt_end = self._prompt_end(text, messages, index, where)
            if start < prompt_end < end:
                start = prompt_end
            if self._end and text.startswith(self._end, end):
                end += len(self._end)
            elif self._end and self._end in text[start:end]:
                end = start + text[start:end].rindex(self._end) + len(self._end)
            spans.append((start, end))
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


def _turn_end(tokenizer: Any, special: Sequence[str]) -> str:
    """The special token that the template writes behind an assistant's turn, or empty."""
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": _PROBE}]
    text = render(messages, tokenizer, "the chat template", generation_prompt=False)
    _, found, behind = text.rpartition(_PROBE)
    if not found:
        raise ConfigError("the chat template does not write the assistant's turns: set chat_template to one that does")
    places = [(behind.find(token), token) for token in special if token in behind]
    return min(places)[1] if places else ""
