"""Is the final answer of a model's output right? By rules alone: exact, bounded in time, nothing is executed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from rlctl.grading.extract import Answer, boxes, final_answer
from rlctl.grading.pair import pair_answers
from rlctl.grading.scan import scan
from rlctl.grading.text import canonical, normalise, without_thought

#: An output this short without any mark is an answer as a whole, when the gold answer is words.
WHOLE_CHARS = 80

_EQUATION = re.compile(r"[A-Za-z]\s*[-+*/^]|[-+*/]\s*\d*[A-Za-z]|\d[A-Za-z].*=")


@dataclass(frozen=True)
class Grade:
    """equal: the answer is right. extracted: the answer as it was written, None when none was found.

    value: its exact value where it is a number. reason: why it is not equal, empty when it is.
    """

    equal: bool
    extracted: str | None
    value: Fraction | None = None
    reason: str = ""


@dataclass(frozen=True)
class PairGrade:
    """Grades of the two answers in one output."""

    a: Grade
    b: Grade


def grade(output: str, gold: str) -> Grade:
    """Compares the final answer of `output` with `gold`; numbers by exact value (`50%` = `0.5`, not `50`)."""
    rest = without_thought(output)
    if rest is None:
        return Grade(False, None, reason="the thought was not ended")
    text = normalise(rest)
    answer = final_answer(text)
    graded = _compare(answer, gold)
    if not graded.equal and len(text) <= WHOLE_CHARS and answer_value(gold) is None:
        return _compare(Answer(text.strip()), gold) if text.strip() else graded
    return graded


def grade_pair(output: str, gold_a: str, gold_b: str) -> PairGrade:
    """Compares the answers to two problems, A and B, in one output."""
    rest = without_thought(output)
    if rest is None:
        unfinished = Grade(False, None, reason="the thought was not ended")
        return PairGrade(unfinished, unfinished)
    answer_a, answer_b = pair_answers(normalise(rest))
    return PairGrade(_compare(answer_a, gold_a), _compare(answer_b, gold_b))


def same_answer(one: str, other: str) -> bool:
    """Whether two short answers (`1/2`, `50%`, `３万`, `72元`) say the same."""
    first, second = answer_value(one), answer_value(other)
    if first is not None and second is not None:
        return first == second
    return first is None and second is None and canonical(one) == canonical(other) != ""


def answer_value(text: str) -> Fraction | None:
    """Exact value of a short answer such as a gold answer; of GSM8K's `... #### 72` the part after the mark."""
    plain = normalise(text.rsplit("####", 1)[-1])
    closed = boxes(plain)
    if len(closed) > 1 or (plain.count("=") > 1 and re.search("[,;]", plain)):
        return None
    plain = (closed[-1][2] if closed else plain)[:500]
    if "=" in plain and _EQUATION.search(plain.rpartition("=")[0]):
        return None
    items = scan(plain)
    if len(items) == 1:
        return items[0].value
    answer = final_answer(f"\\boxed{{{plain}}}") if items else None
    return answer.value if answer else None


def _compare(answer: Answer | None, gold: str) -> Grade:
    if answer is None:
        return Grade(False, None, reason="no answer found")
    expected = answer_value(gold)
    if expected is not None:
        if answer.value is None:
            return Grade(False, answer.text, reason="not one plain number")
        equal = answer.value == expected
        return Grade(equal, answer.text, answer.value, "" if equal else "another number")
    equal = canonical(answer.text) == canonical(gold.rsplit("####", 1)[-1]) != ""
    return Grade(equal, answer.text, answer.value, "" if equal else "another text")
