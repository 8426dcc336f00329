"""Wrong answers made from a task's right ones: preferences, judgements and judged steps without any annotator."""

from __future__ import annotations

import random
import re
from typing import Any

from rlctl.core.errors import ConfigError

#: Ends each step of `worked`.
STEP_END = "\n"


def corrupted(entry: dict[str, Any], share: float, seed: str) -> dict[str, Any]:
    """The entry with more columns, made by `seed` alone:

    `wrong`: the answer with one digit changed. `shown`: the answer, or with probability `share` the wrong one;
    `shown_right` says which. Of a chain of sums also `worked`: the question and one step a line, in which a step's
    result is wrong with probability `share` (and the next goes on from it); `worked_right` has a truth value a step.
    Raises ConfigError when the answer has no digit.
    """
    draw = random.Random(seed)
    answer = str(entry["answer"])
    wrong = change_digit(answer, draw)
    right = draw.random() >= share
    more = {"wrong": wrong, "shown": answer if right else wrong, "shown_right": right}
    expression = str(entry["metadata"].get("expression", ""))
    if re.fullmatch(r"\d+( [+-] \d+)+", expression):
        steps, truths = _work(expression, share, draw)
        more |= {"worked": f"{entry['question']} {STEP_END.join(steps)}{STEP_END}", "worked_right": truths}
    return entry | more


def change_digit(text: str, draw: random.Random) -> str:
    """The text with one of its digits replaced by another; no number gets a leading 0."""
    places = [match.start() for match in re.finditer(r"\d", text)]
    if not places:
        raise ConfigError(f"corrupt changes a digit of the answer, and {text!r} has none: leave corrupt out")
    place = draw.choice(places)
    leads = not text[:place][-1:].isdigit() and text[place + 1 : place + 2].isdigit()
    digits = [digit for digit in "0123456789"[1 if leads else 0 :] if digit != text[place]]
    return text[:place] + draw.choice(digits) + text[place + 1 :]


def _work(expression: str, share: float, draw: random.Random) -> tuple[list[str], list[bool]]:
    """Running totals: `3 + 4 - 2` gives `3 + 4 = 7`, `7 - 2 = 5`."""
    first, *rest = expression.split(" ")
    total = int(first)
    steps, truths = [], []
    for operator, term in zip(rest[::2], rest[1::2], strict=True):
        result = total + int(term) if operator == "+" else total - int(term)
        right = draw.random() >= share
        told = result if right else int(change_digit(str(result), draw))
        steps.append(f"{total} {operator} {term} = {told}")
        truths.append(right)
        total = told
    return steps, truths
