r"""Takes the final answer out of model output.

In this order: the last closed `\boxed{}` (unless a "final answer" is named after it), the last `#### x`, an
`<answer>` tag, the last answer phrase (`答案：`, `the answer is`), and else the last number of the last sentence that
holds one. A place that names two numbers ("5 apples and 3 pears") gives no answer rather than a guess.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from rlctl.grading.scan import Item, scan

#: Characters read after an answer phrase, inside a box, and at the end of a text without either.
CLAUSE_CHARS = 300
BOX_CHARS = 500
TAIL_CHARS = 2_000
#: Answer phrases tried from the end backwards.
MAX_TRIES = 20

_BOX = re.compile(r"\\(?:boxed|fbox)\s{0,3}\{")
_BRACES = re.compile(r"\\[{}]|[{}]")
_HASHES = re.compile(r"####[ \t]*([^\n]{1,300})")
PHRASE = re.compile(
    r"(?:最终|最后|正确|参考|所以|因此|故)?(?:答案|结果|得数)(?:应该|应当|就|分别|便)?\s*(?:[:=]|是|为|等于|即)\s*[:=]?"
    r"|(?<![A-Za-z])答\s*:"
    r"|\b(?:final\s{1,4})?(?:answer|result|solution)s?\s{0,4}(?:(?:is|are|equals?|of)(?![a-z])\s{0,4}(?:that\b|equal\sto)?\s?:?|[:=])",
    re.I,
)
_NAMED_FINAL = re.compile(r"final\s{1,4}answer|最终答案", re.I)
_CLAUSE_END = re.compile(
    r"[。！!?;；\n]|\.(?!\d)|,(?!\d)(?!\s\d)"
    r"|\b(?:because|since|for|after|per|when|if|which|where|so)\b|因为|由于"
)
_SENTENCE_END = re.compile(r"[。!?;\n]|\.(?=\s|$)")
_EQUALS = re.compile(r"=|等于")
_ROUNDED = re.compile(r"≈|约等于")
_BRACKETS = re.compile(r"[()]")


@dataclass(frozen=True)
class Answer:
    """What was found: its text, and its value where that is a plain number."""

    text: str
    value: Fraction | None = None
    source: str = ""


def boxes(text: str) -> list[tuple[int, int, str]]:
    r"""Every closed `\boxed{...}` as (start, end, content), outermost only, in order."""
    opened = {match.end() - 1: match.start() for match in _BOX.finditer(text)}
    found: list[tuple[int, int, str]] = []
    if not opened:
        return found
    stack: list[int] = []
    for match in _BRACES.finditer(text):
        if match[0] == "{":
            stack.append(match.start())
        elif match[0] == "}" and stack:
            brace = stack.pop()
            if brace in opened:
                while found and found[-1][0] > opened[brace]:
                    found.pop()
                found.append((opened[brace], match.end(), text[brace + 1 : match.start()]))
    return found


def final_answer(text: str, *, opening: bool = False) -> Answer | None:
    """The final answer of normalised `text`, or None.

    opening: the text follows right on a mark such as `A:`, so a number at its beginning is the answer when nothing
    later draws a conclusion.
    """
    closed = boxes(text)
    if closed:
        # A box in the working does not outweigh a final answer that is named after it.
        after = text[closed[-1][1] :]
        named = _of_phrase(after) if _NAMED_FINAL.search(after) else None
        return named if named and named.value is not None else _of_content(closed[-1][2][:BOX_CHARS], "box")
    lines = _HASHES.findall(text)
    if lines:
        return _of_content(lines[-1], "####")
    before, closing, _ = text.rpartition("</answer>")
    if closing and "<answer>" in before:
        return _of_content(before.rpartition("<answer>")[2][:BOX_CHARS], "tag")
    phrased = _of_phrase(text)
    if phrased is not None:
        return phrased
    if opening:
        first = _of_opening(text)
        if first is not None:
            return first
    return _of_tail(text)


def _of_content(content: str, source: str) -> Answer | None:
    inner = boxes(content)
    content = (inner[-1][2] if inner else content).strip()
    if not content:
        return None
    return Answer(content, _single(content, scan(content)), source)


def _of_phrase(text: str) -> Answer | None:
    matches = list(PHRASE.finditer(text))
    for match in reversed(matches[-MAX_TRIES:]):
        clause = clause_after(text, match.end())
        if not clause.strip():
            continue
        items = scan(clause)
        if items:
            return Answer(_shown(clause, items), _single(clause, items), "phrase")
        if match is matches[-1]:
            words = clause.strip(" *:\n")
            following = _of_tail(text[match.end() + len(clause) :]) if len(words) > 12 else None
            return following or Answer(words, None, "phrase")
    return None


def clause_after(text: str, start: int) -> str:
    """The clause that begins at `start`, line breaks and marks of emphasis before it skipped."""
    window = text[start : start + CLAUSE_CHARS]
    body = window.lstrip(" \n\t:=*>")
    end = _CLAUSE_END.search(body)
    return body[: end.start()] if end else body


def _of_opening(text: str) -> Answer | None:
    clause = clause_after(text, 0)
    items = scan(clause)
    later = text[text.find(clause) + len(clause) :][:TAIL_CHARS]
    if (
        not items
        or _EQUALS.search(later)
        or re.search(r"所以|因此|一共|总共|共|故|total|therefore|\bso\b|thus|hence", later, re.I)
    ):
        return None
    value = _single(clause, items)
    return Answer(_shown(clause, items), value, "mark") if value is not None else None


def _of_tail(text: str) -> Answer | None:
    """The last number of the last sentence that holds one; a list or an expression there is no answer."""
    tail = text[-TAIL_CHARS:]
    ends = [0, *(match.end() for match in _SENTENCE_END.finditer(tail)), len(tail)]
    for begin, end in zip(reversed(ends[:-1]), reversed(ends[1:]), strict=True):
        sentence = tail[begin:end]
        items = outside_brackets(sentence, scan(sentence))
        if not items:
            continue
        items = _exact(sentence, items)
        equal = [match.end() for match in _EQUALS.finditer(sentence)]
        after = [item for item in items if equal and item.start >= equal[-1]]
        chosen = after or [item for item in items if item.kind != "numeral"] or items
        last = chosen[0] if after and after[0].value is not None else chosen[-1]
        return Answer(sentence[last.start : last.end], last.value, "last number")
    return None


def _single(text: str, items: list[Item]) -> Fraction | None:
    """The value of a place that names one number; None when it names none, several, or an expression."""
    items = _exact(text, outside_brackets(text, items))
    equal = [match.end() for match in _EQUALS.finditer(text)]
    if equal:
        items = [item for item in items if item.start >= equal[-1]] or items
    arabic = [item for item in items if item.kind != "numeral"]
    items = arabic or items
    return items[0].value if len(items) == 1 else None


def _exact(text: str, items: list[Item]) -> list[Item]:
    """Of `1/3 ≈ 0.33` what stands before the sign."""
    rounded = _ROUNDED.search(text)
    return [item for item in items if rounded and item.end <= rounded.start()] or items


def outside_brackets(text: str, items: list[Item]) -> list[Item]:
    """Drops what stands in round brackets when something stands outside: `72 元（每人 36 元）` says 72."""
    depth, position = 0, 0
    outside: list[Item] = []
    for item in items:
        for bracket in _BRACKETS.findall(text[position : item.start]):
            depth = max(0, depth + (1 if bracket == "(" else -1))
        position = item.start
        if depth == 0:
            outside.append(item)
    return outside or items


def _shown(clause: str, items: list[Item]) -> str:
    if len(items) == 1:
        return clause[items[0].start : items[0].end]
    return clause.strip()
