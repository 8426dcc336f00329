"""Rows as the model sees them: each token's text, and whether it is read, learnt, preferred or judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rlctl.data.kto import Judged
from rlctl.data.preference import Pair
from rlctl.data.process import Steps
from rlctl.data.prompts import Prompt
from rlctl.data.supervised import Example

Role = Literal["read", "learnt", "better", "worse", "right", "wrong"]


@dataclass(frozen=True)
class Token:
    """A token as text; the text of several that make up one character stands in the last of them."""

    text: str
    role: Role


@dataclass(frozen=True)
class Line:
    """One sequence of a row."""

    title: str
    tokens: list[Token]

    @property
    def learnt(self) -> int:
        """Tokens that a loss is computed on."""
        return sum(token.role != "read" for token in self.tokens)


def view(item: Any, tokenizer: Any) -> list[Line]:
    """The sequences of a row: one, or two of a pair."""
    if isinstance(item, Prompt):
        title = f"prompt, label {item.label!r}" if item.label else "prompt"
        return [_line(title, item.prompt_ids, ["read"] * len(item.prompt_ids), tokenizer)]
    if isinstance(item, Example):
        roles: list[Role] = ["learnt" if learnt else "read" for learnt in item.mask]
        return [_response("example", item.prompt_ids, item.response_ids, roles, tokenizer)]
    if isinstance(item, Pair):
        better = "chosen" + (f", margin {item.margin:g}" if item.margin else "")
        return [
            _response(better, item.prompt_ids, item.chosen_ids, ["better"] * len(item.chosen_ids), tokenizer),
            _response("rejected", item.prompt_ids, item.rejected_ids, ["worse"] * len(item.rejected_ids), tokenizer),
        ]
    if isinstance(item, Judged):
        role: Role = "better" if item.desirable else "worse"
        title = "desirable" if item.desirable else "undesirable"
        return [_response(title, item.prompt_ids, item.response_ids, [role] * len(item.response_ids), tokenizer)]
    assert isinstance(item, Steps)
    judged = dict(zip(item.positions, item.labels, strict=True))
    roles = [
        "read" if place not in judged else "right" if judged[place] >= 0.5 else "wrong"
        for place in range(len(item.input_ids))
    ]
    title = f"steps, labels {', '.join(f'{label:g}' for label in item.labels)}"
    return [_line(title, item.input_ids, roles, tokenizer)]


def token_texts(ids: Sequence[int], tokenizer: Any) -> list[str]:
    """The text of each token as it stands among the others; joined, they are the text of all."""
    texts: list[str] = []
    start = 0
    for end in range(1, len(ids) + 1):
        # A word's first token may be written differently at the start of a text: a few tokens stand before it.
        before = max(start - _CONTEXT, 0)
        shown = _decode(ids[before:start], tokenizer)
        text = _decode(ids[before:end], tokenizer)
        if text.endswith("\ufffd") and end < len(ids) and end - start < _LONGEST_CHARACTER:
            texts.append("")
            continue
        texts.append(text[len(shown) :])
        start = end
    return texts


_CONTEXT = 8
_LONGEST_CHARACTER = 4


def _decode(ids: Sequence[int], tokenizer: Any) -> str:
    if not ids:
        return ""
    return str(tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))


def _response(title: str, prompt: list[int], response: list[int], roles: list[Role], tokenizer: Any) -> Line:
    return _line(title, [*prompt, *response], [*["read"] * len(prompt), *roles], tokenizer)  # type: ignore[list-item]


def _line(title: str, ids: list[int], roles: Sequence[Role], tokenizer: Any) -> Line:
    texts = token_texts(ids, tokenizer)
    return Line(title, [Token(text, role) for text, role in zip(texts, roles, strict=True)])
