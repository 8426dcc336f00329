"""Chinese numerals as exact numbers, read by cn2an (imported at first use: it loads word lists)."""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

DIGITS = "零〇一二两兩三四五六七八九壹贰貳叁參肆伍陆陸柒捌玖"
UNITS = "十拾百佰千仟万萬亿億廿卅"

#: Longest numeral that is read, characters.
MAX_NUMERAL = 40

MAGNITUDES = {
    "十": 10, "拾": 10, "百": 100, "佰": 100, "千": 1000, "仟": 1000,
    "万": 10**4, "萬": 10**4, "亿": 10**8, "億": 10**8,
}  # fmt: skip

#: A numeral begins with a digit or with a unit that can lead (十二, 廿五), never with 百, 千, 万 or 亿.
NUMERAL = rf"[{DIGITS}十拾廿卅][{DIGITS}{UNITS}]*+(?:[点點][{DIGITS}]++)?+"

_DIGIT_VALUES = {character: value for value, group in enumerate(
    ("零〇", "一壹", "二两兩贰貳", "三叁參", "四肆", "五伍", "六陆陸", "七柒", "八捌", "九玖")
) for character in group}  # fmt: skip
_TRADITIONAL = str.maketrans("兩貳參陸萬億點", "两贰叁陆万亿点")


@lru_cache(maxsize=4096)
def numeral_value(text: str) -> Fraction | None:
    """Value of `七十二`, `两百`, `三万五`, `壹佰贰拾`, `三点五`; None when it is no numeral."""
    if not text or len(text) > MAX_NUMERAL:
        return None
    text = text.translate(_TRADITIONAL).replace("卅", "三十").replace("〇", "零")
    if text in ("百", "千", "万", "亿"):
        text = "一" + text
    whole, point, decimals = text.partition("点")
    value = _integer(whole)
    if value is None:
        return None
    if point:
        value += Fraction(int("".join(str(_DIGIT_VALUES[c]) for c in decimals)), 10 ** len(decimals))
    return value


def _integer(text: str) -> Fraction | None:
    from cn2an import cn2an

    try:
        value = cn2an(text, "normal")
    except (ValueError, KeyError, IndexError):
        return None
    return Fraction(value) if isinstance(value, int) else None


def mixed_value(number: Fraction, units: str, tail: str) -> Fraction | None:
    """Value of `3.5万`, `2百万`, and with a tail `3万5` or `3万5千2百` (digits glued to units).

    `tail` holds what follows the first units: pairs of digits and units, the last possibly without a unit (spoken
    form: a tenth of the unit before). None when the units do not fall.
    """
    scale = _scale(units)
    total = number * scale
    for digits, unit in re.findall(rf"(\d+)([{''.join(MAGNITUDES)}]*)", tail):
        following = _scale(unit) if unit else scale // 10
        if following >= scale or len(digits) > 4:
            return None
        total += int(digits) * following
        scale = following
    return total


def _scale(units: str) -> int:
    scale = 1
    for unit in units[:4]:
        scale *= MAGNITUDES[unit]
    return scale
