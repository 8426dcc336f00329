"""Cuts the output for two problems into its part about A and its part about B.

Ways to tell them apart, the surest first: letters (`问题A`, `答案B：`, `**A**`, `A=`), numbered problems (`第一题`,
`Problem 2`), numbered lists, two boxes in order, and two numbers in the final clause.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from rlctl.grading.extract import MAX_TRIES, PHRASE, Answer, boxes, clause_after, final_answer
from rlctl.grading.scan import scan

#: Characters of one part that are read, and marks that are looked at, from the end.
PART_CHARS = 4_000
MAX_MARKS = 500

_LETTER = re.compile(
    r"(?P<before>(?:问题|题目|答案|解答|problem|question|answer|part|[【\[(#>*]|^|\n|[:;,。.、\s])\s?)??"
    r"(?<![A-Za-z0-9\\])(?P<name>[AB])(?![A-Za-z0-9'’])"
    r"(?P<after>\s?(?:[】\])*]|题|的?答案|问题)*\s?(?:[:=]|是|为|\bis\b)?)",
    re.I,
)
_NUMBERED = re.compile(
    r"(?P<before>)(?:第\s?(?P<n1>[一二12])\s?(?:道|个)?(?:小?题|问题|问)|(?:问题|题目|答案|题)\s?(?P<n2>[一二12])(?![\d一二三四五六七八九十百千万元个.])"
    r"|\b(?:problem|question|answer|part|q)\s?#?(?P<n3>[12])(?![\d.]\d|\d))(?P<after>\s?(?:的?答案|\*\*|[】\])])*\s?(?:[:=]|是|为|\bis\b)?)",
    re.I,
)
_LISTED = re.compile(r"(?:^|\n|(?<=[ ;。]))\s{0,4}(?:\((?P<n1>[12])\)|(?P<n2>[12])(?:[)、]|\.(?!\d)))(?P<after>\s?)")
_RESPECTIVELY = re.compile(r"分别(?:是|为|等于)?\s?:?|(?:respectively)", re.I)
_AND = re.compile(r"\s?(?:和|与|及|、|,|&|and)?\s?(?:问题|problem|answer)?\s?", re.I)
_ARTICLE_AFTER = re.compile(r" (?!and\b|is\b|equals\b)[a-z]")
_FINAL = re.compile(r"(?:最终|最后)\s?(?:的)?答案|final\s+answers?", re.I)


class _Mark(NamedTuple):
    name: str
    start: int
    end: int
    strong: bool


def pair_answers(text: str) -> tuple[Answer | None, Answer | None]:
    """Final answers to A and to B in normalised `text`; None where there is none.

    A closing part ("最终答案：...") that gives both counts before all that precedes it.
    """
    closing = list(_FINAL.finditer(text))
    if closing:
        found = _anywhere(text[closing[-1].start() :])
        if found[0] is not None and found[1] is not None:
            return found
    return _anywhere(text)


def _anywhere(text: str) -> tuple[Answer | None, Answer | None]:
    for find in (_letters, _numbered, _listed):
        marks = find(text)[-MAX_MARKS:]
        if marks:
            found = _by_marks(text, marks)
            if found != (None, None):
                return found
    return _unmarked(text)


def _letters(text: str) -> list[_Mark]:
    marks = []
    for match in _LETTER.finditer(text):
        before, after = match["before"] or "", match["after"]
        strong = bool(before.strip(" \n:;,。.、")) or bool(after.strip())
        if match["name"].islower() and not strong:
            continue
        if _is_article(text, match, strong):
            continue
        marks.append(_Mark(match["name"].upper(), match.start(), match.end(), strong))
    return marks


def _is_article(text: str, match: re.Match[str], strong: bool) -> bool:
    """`A train leaves` is no mark."""
    follows = text[match.end("name") : match.end("name") + 9]
    if match["name"] not in "Aa" or match["after"].strip() or not _ARTICLE_AFTER.match(follows):
        return False
    return not (strong and (match["before"] or "").strip(" \n:;,。.、([*").isalpha())


def _numbered(text: str) -> list[_Mark]:
    return _digits(text, _NUMBERED)


def _listed(text: str) -> list[_Mark]:
    return _digits(text, _LISTED)


def _digits(text: str, pattern: re.Pattern[str]) -> list[_Mark]:
    marks = []
    for match in pattern.finditer(text):
        number = next(value for key, value in match.groupdict().items() if key.startswith("n") and value)
        marks.append(_Mark("A" if number in "1一" else "B", match.start(), match.end(), bool(match["after"].strip())))
    return marks


def _by_marks(text: str, marks: list[_Mark]) -> tuple[Answer | None, Answer | None]:
    both = _shared_part(text, marks)
    if both is not None:
        return both
    ends = [mark.start for mark in marks[1:]] + [len(text)]
    parts = [(mark, text[mark.end : end][:PART_CHARS]) for mark, end in zip(marks, ends, strict=True)]
    return _last_of("A", parts), _last_of("B", parts)


def _last_of(name: str, parts: list[tuple[_Mark, str]]) -> Answer | None:
    """The answer of the last part of that name that holds one: explicit marks first, bare letters after."""
    mine = [(mark, part) for mark, part in parts if mark.name == name]
    for wanted in (True, False):
        tried = [(mark, part) for mark, part in mine if mark.strong is wanted][-MAX_TRIES:]
        for _, part in reversed(tried):
            answer = final_answer(part, opening=True)
            if answer is not None and (answer.value is not None or answer.text):
                return answer
    return None


def _shared_part(text: str, marks: list[_Mark]) -> tuple[Answer, Answer] | None:
    """`A和B的答案分别是72和10`, `A and B: \\boxed{72}, \\boxed{10}`: both marks first, then both numbers."""
    last = marks[-1]
    if len(marks) < 2 or marks[-2].name == last.name:
        return None
    if not _AND.fullmatch(text[marks[-2].end : last.start][:12]):
        return None
    part = text[last.end :][:PART_CHARS]
    order: Callable[[Answer, Answer], tuple[Answer, Answer]] = (
        (lambda x, y: (x, y)) if last.name == "B" else (lambda x, y: (y, x))
    )
    closed = boxes(part)
    if len(closed) == 2:
        return order(*(_boxed(box[2]) for box in closed))
    two = _two_numbers(clause_of(part))
    return order(*two) if two else None


def clause_of(part: str) -> str:
    """The first clause, commas kept: both numbers stand in it."""
    end = re.search(r"[。!?\n]|\.(?!\d)", part)
    return part[: end.start()] if end else part[:300]


def _boxed(content: str) -> Answer:
    answer = final_answer(f"\\boxed{{{content}}}")
    return answer or Answer(content.strip())


def _two_numbers(clause: str) -> tuple[Answer, Answer] | None:
    items = scan(clause)
    if len(items) == 1 and len(items[0].parts) == 2:
        first, second = items[0].parts
        return Answer(str(first), first, "pair"), Answer(str(second), second, "pair")
    if len(items) == 2 and all(item.value is not None for item in items):
        first_item, second_item = items
        return (
            Answer(clause[first_item.start : first_item.end], first_item.value, "pair"),
            Answer(clause[second_item.start : second_item.end], second_item.value, "pair"),
        )
    return None


def _unmarked(text: str) -> tuple[Answer | None, Answer | None]:
    closed = boxes(text)
    if len(closed) >= 2:
        return _boxed(closed[-2][2]), _boxed(closed[-1][2])
    if len(closed) == 1:
        inside = closed[0][2]
        marks = _letters(inside)
        if marks:
            return _by_marks(inside, marks)
        two = _two_numbers(inside[:300])
        return two if two else (None, None)
    places = [match.end() for pattern in (_RESPECTIVELY, _FINAL, PHRASE) for match in pattern.finditer(text)]
    for place in sorted(places, reverse=True)[:MAX_TRIES]:
        clause = clause_of(text[place : place + 300].lstrip(" \n:="))
        two = _two_numbers(clause) if clause else None
        if two:
            return two
        if clause_after(text, place).strip():
            break
    return None, None
