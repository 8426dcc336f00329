r"""Finds the numbers in normalised text, each with its place and its exact value.

Neighbours that belong together become one item: `1 000 000` and `2 1/2` are numbers, `0,1` is a list, `36+36` an
expression, `12:00` a time. Only a plain number has a value; nothing is ever computed from an expression.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from rlctl.grading.numerals import DIGITS, MAGNITUDES, NUMERAL, UNITS, mixed_value, numeral_value
from rlctl.grading.text import OPAQUE

#: Digits of the longest number read, and the largest exponent.
MAX_DIGITS = 400
MAX_EXPONENT = 400

Kind = Literal["number", "numeral", "list", "expression", "other"]


@dataclass(frozen=True)
class Item:
    """A number, or a thing made of numbers, at `text[start:end]`.

    kind: `number` (with Arabic digits), `numeral` (Chinese), `list`, `expression`, or `other` (time, date, symbol).
    value: exact, for the first two kinds; None else. parts: members of a list.
    """

    start: int
    end: int
    kind: Kind
    value: Fraction | None = None
    parts: tuple[Fraction, ...] = ()


_RUN = r"(?:\d++(?:,\d++)*+(?:\.\d++)?+|\.\d++)"
_NUMERAL_PART = rf"(?:\d++(?:\.\d++)?+|[百千万亿]|{NUMERAL})"
_GROUP = r"\{(?:[^{}]++|\{(?:[^{}]++|\{[^{}]*+\})*+\})*+\}"
_MAGNITUDE = f"[{''.join(MAGNITUDES)}]"
_TOKEN = re.compile(
    rf"""
      (?P<opaque>[{OPAQUE}√](?:{_GROUP}|\[[^\[\]]*+\]|\s?\d++)*+)
    | (?P<other>\d++:\d++(?::\d++)*+(?:\.\d++)?+ | \d{{4}}[-/]\d{{1,2}}[-/]\d{{1,2}}(?!\d) | \d++(?:\.\d++){{2,}}+
        | \d++\s*/\s*\d++(?:\s*/\s*\d++)++)
    | (?P<money>(?:RMB|USD|CNY|HKD|EUR|GBP|Rs\.?)\s*(?=\d))
    | (?P<word>[A-Za-z]++(?:\s?\^\s?\{{?[-+]?\d++\}}?|_?\{{?\d++\}}?)++[A-Za-z\d_]*+)
    | (?P<minus>(?:负|負|零下|\bminus\s|\bnegative\s)\s*(?=[\d.{DIGITS}十百]))
    | (?P<parts>(?:(?P<whole>{_NUMERAL_PART})又)?(?P<below>{_NUMERAL_PART})分之(?P<above>{_NUMERAL_PART}))
    | (?P<half>一半|半数)
    | (?P<above2>{_RUN})\s*/\s*(?P<below2>{_RUN})
    | (?P<run>{_RUN})
        (?: (?P<e>[eE][-+]?\d++(?!\w))
          | \s?(?:×|\*|x|·)\s?10\s?(?:\^|\*\*)\s?\{{?\s?(?P<ten>[-+]?\d++)\s?\}}?
          | \s?\^\s?\{{?\s?(?P<power>[-+]?\d++)\s?\}}?
          | \s?(?P<units>{_MAGNITUDE}{{1,4}})(?P<tail>(?:\d{{1,4}}{_MAGNITUDE}{{0,2}})*+)
          | \s?(?P<english>hundred|thousand|million|billion|trillion)\b
        )?
        (?P<percent>\s{{0,2}}(?:%|‰|percent(?:age)?\b|per\scent\b|pct\b))?
    | (?P<numeral>{NUMERAL})
    """,
    re.X | re.ASCII,
)  # fmt: skip

_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})++(?:\.\d++)?+")
_OPERATOR = re.compile(r"[\s()]*(?:\*\*|[-+*/×÷·^]|(?<=[\s\d)])x(?=[\s\d(]))[\s()]*[-+]?\s?")
_LISTING = re.compile(r"\s?[,、~]\s?[-+]?|\s?(?:[到至]|或者?|还是|\bor\b)\s?")
_SYMBOL_AFTER = re.compile(r"\s?[π√∞" + OPAQUE + r"]|[xyzknabπ](?![A-Za-z])|[A-Za-ln-z]\s?\^|_")
_TERM = re.compile(r"(?:(?<![A-Za-z'])[a-z]|\)) ?[-+*/] ?$")
_ENGLISH = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}

# Numerals inside words count nothing: 一共 (in all), 一样 (alike), 三角形 (triangle), 第一 (first), 十分 (very).
_WORD_BEFORE = re.compile(rf"[第每这那另某任上下同统唯单逐不初周期拜进之其惟专万]$|[{UNITS}]$")
_WORD_AFTER = re.compile(
    r"共|起|样|些|般|定|直|边|旦|切|致|律|时|向|并|来|方面|会|系列|点(?:点|也|都|儿)?(?![零一二三四五六七八九])"
    r"|角形|角|边形|面体|位数|次方|等奖|者|舍|则|分(?!之)|五入|个数|种情况|部分|步"
)


def scan(text: str) -> list[Item]:
    """All items of normalised `text` in order; linear in its length (give it a window, not a book)."""
    return _join(text, list(_tokens(text)))


def _tokens(text: str) -> list[Item]:
    items: list[Item] = []
    negative_from: int | None = None
    for match in _TOKEN.finditer(text):
        start, end = match.span()
        if match["money"] is not None or (match["word"] is not None):
            continue
        if match["minus"] is not None:
            negative_from = start
            continue
        sign, signed_start = _sign(text, start, items[-1].end if items else 0)
        if negative_from is not None and text[negative_from:start].strip() in ("负", "負", "零下", "minus", "negative"):
            sign, signed_start = -1, negative_from
        negative_from = None
        if match["opaque"] is not None or match["other"] is not None:
            items.append(Item(start, end, "other"))
        elif match["numeral"] is not None:
            if not _inside_word(text, start, end, match["numeral"]):
                items.append(_valued(signed_start, end, "numeral", sign, numeral_value(match["numeral"])))
        elif match["parts"] is not None:
            items.append(_valued(signed_start, end, "number", sign, _parts(match)))
        elif match["half"] is not None:
            items.append(Item(start, end, "numeral", Fraction(1, 2)))
        elif match["above2"] is not None:
            above, below = _run(match["above2"]), _run(match["below2"])
            value = above / below if above is not None and below else None
            items.append(_valued(signed_start, end, "number", sign, value))
        elif _SYMBOL_AFTER.match(text, end) or _bound_before(text, signed_start) or _term_before(text, start):
            items.append(Item(start, end, "other"))
        else:
            items.append(_number(signed_start, end, sign, match))
    return [item for item in items if not (item.kind == "numeral" and item.value is None)]


def _valued(start: int, end: int, kind: Kind, sign: int, value: Fraction | None) -> Item:
    if value is None:
        return Item(start, end, "numeral" if kind == "numeral" else "other")
    return Item(start, end, kind, sign * value)


def _sign(text: str, start: int, previous_end: int) -> tuple[int, int]:
    """The sign before a number: a minus after a digit, a letter or `)` is an operator, not a sign."""
    at = start - 1
    if at < previous_end or text[at] not in "-+":
        return 1, start
    before = text[max(0, at - 8) : at].rstrip(" ")[-1:]
    spaced = bool(at and text[at - 1] in " \n")
    if before and (before.isdigit() or before in ")]}%°" or (before.isascii() and before.isalnum() and not spaced)):
        return 1, start
    return (-1 if text[at] == "-" else 1), at


def _bound_before(text: str, start: int) -> bool:
    """`> 5`, `≤ 5` and `±5` name no number; an arrow or a quotation mark at the line's beginning is none of them."""
    before = text[max(0, start - 4) : start].rstrip()
    if not before or before[-1] not in "<>≤≥≠±":
        return False
    return before[-1] != ">" or (len(before) > 1 and before[-2] not in "-=\n>")


def _term_before(text: str, start: int) -> bool:
    """In `x + 1` and `(y)-1` the number is part of a term."""
    return bool(_TERM.search(text[max(0, start - 6) : start]))


def _number(start: int, end: int, sign: int, match: re.Match[str]) -> Item:
    run = match["run"]
    if "," in run and not _THOUSANDS.fullmatch(run):
        values = tuple(value for value in (_decimal(part) for part in run.split(",")) if value is not None)
        return Item(start, end, "list", parts=values[:8])
    value = _run(run)
    if value is None:
        return Item(start, end, "other")
    if match["e"] or match["ten"]:
        value = _power(Fraction(10), match["ten"] or match["e"][1:], value)
    elif match["power"]:
        value = _power(value, match["power"], Fraction(1))
    elif match["units"]:
        value = mixed_value(value, match["units"], match["tail"])
    elif match["english"]:
        value *= _ENGLISH[match["english"]]
    if value is not None and match["percent"]:
        value /= 1000 if "‰" in match["percent"] else 100
    return _valued(start, end, "number", sign, value)


def _power(base: Fraction, written: str, factor: Fraction) -> Fraction | None:
    """factor x base^written, within bounds."""
    if len(written) > 6:
        return None
    exponent = int(written)
    digits = len(str(max(abs(base.numerator), base.denominator)))
    if abs(exponent) * digits > 2 * MAX_EXPONENT or (base == 0 and exponent < 0):
        return None
    return factor * base**exponent


def _run(run: str) -> Fraction | None:
    if "," in run and not _THOUSANDS.fullmatch(run):
        return None
    return _decimal(run.replace(",", ""))


def _decimal(digits: str) -> Fraction | None:
    if len(digits) > MAX_DIGITS:
        return None
    whole, _, decimals = digits.partition(".")
    return Fraction(int((whole + decimals) or "0"), 10 ** len(decimals))


def _parts(match: re.Match[str]) -> Fraction | None:
    """`三分之一`, `百分之50`, `二又三分之一`."""
    below, above = _either(match["below"]), _either(match["above"])
    whole = _either(match["whole"]) if match["whole"] else Fraction(0)
    if not below or above is None or whole is None:
        return None
    return whole + above / below


def _either(text: str) -> Fraction | None:
    return _decimal(text) if text[0].isdigit() and text[0].isascii() else numeral_value(text)


def _inside_word(text: str, start: int, end: int, numeral: str) -> bool:
    if len(numeral) > 2:
        return False
    return bool(_WORD_BEFORE.search(text[max(0, start - 1) : start]) or _WORD_AFTER.match(text, end)
                if len(numeral) == 1 else text[max(0, start - 1) : start] == "第")  # fmt: skip


def _join(text: str, items: list[Item]) -> list[Item]:
    """Folds neighbours that are one thing: grouped thousands, mixed fractions, lists and expressions."""
    joined: list[Item] = []
    for item in _space_groups(text, items):
        last = joined[-1] if joined else None
        glue = text[last.end : item.start] if last is not None else ""
        if last is None or len(glue) > 16:
            joined.append(item)
        elif glue == " " and _is_whole(text, last) and "/" in text[item.start : item.end] and _proper(item):
            assert last.value is not None
            assert item.value is not None
            part = -item.value if last.value < 0 or text[last.start] == "-" else item.value
            joined[-1] = Item(last.start, item.end, "number", last.value + part)
        elif re.fullmatch(r"又", glue) and _is_whole(text, last) and _proper(item):
            assert last.value is not None
            assert item.value is not None
            part = -item.value if last.value < 0 else item.value
            joined[-1] = Item(last.start, item.end, "number", last.value + part)
        elif _LISTING.fullmatch(glue) and item.kind != "numeral":
            parts = _members(last) + _members(item)
            joined[-1] = Item(last.start, item.end, "list", parts=parts[:8])
        elif _OPERATOR.fullmatch(glue) or (item.start > last.end and glue.strip() in ("-", "+")):
            joined[-1] = Item(last.start, item.end, "expression")
        else:
            joined.append(item)
    return joined


def _members(item: Item) -> tuple[Fraction, ...]:
    return (item.value,) if item.value is not None else item.parts


def _is_whole(text: str, item: Item) -> bool:
    return item.value is not None and item.kind == "number" and text[item.start : item.end].lstrip("+-").isdigit()


def _proper(item: Item) -> bool:
    return item.value is not None and 0 < item.value < 1


def _space_groups(text: str, items: list[Item]) -> list[Item]:
    """`1 000 000` is one number when every group after the first has three digits."""
    grouped: list[Item] = []
    index = 0
    while index < len(items):
        stop = index + 1
        while (
            stop < len(items) and text[items[stop - 1].end : items[stop].start] == " " and _is_whole(text, items[stop])
        ):
            stop += 1
        chain = items[index:stop]
        words = [text[item.start : item.end] for item in chain]
        lead = words[0].lstrip("+-")
        if (
            len(chain) > 1 and _is_whole(text, chain[0]) and 1 <= len(lead) <= 3 and lead[0] != "0"
            and all(len(word) == 3 and word.isdigit() for word in words[1:])
        ):  # fmt: skip
            value = _decimal(lead + "".join(words[1:]))
            sign = -1 if words[0].startswith("-") else 1
            grouped.append(_valued(chain[0].start, chain[-1].end, "number", sign, value))
        else:
            grouped.extend(chain)
        index = stop
    return grouped
