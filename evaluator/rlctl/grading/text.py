"""Brings model output into one plain form before answers are read from it.

Chinese and English text, full-width forms, LaTeX and Markdown all end as ASCII digits and signs, so that the
rest of the package knows one spelling of a number. Every step is linear in the length of the text.
"""

from __future__ import annotations

import re
import unicodedata

#: Longest text that is read, characters; of a longer one the end counts, where answers stand.
MAX_CHARS = 20_000

#: Stands for `\frac` where its parts are no plain numbers.
OPAQUE = "\ue000"

_THOUGHT_END = re.compile(r"</(?:think|thinking|thought|reasoning)>|<\|end_of_thought\|>|◁/think▷", re.I)
_THOUGHT_START = re.compile(r"<(?:think|thinking|thought|reasoning)>|<\|begin_of_thought\|>|◁think▷", re.I)

_SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789", strict=True))
_SUBSCRIPTS = dict(zip("₀₁₂₃₄₅₆₇₈₉", "0123456789", strict=True))
_SUPERSCRIPT_RUN = re.compile(f"[{''.join(_SUPERSCRIPTS)}]+")
_SUBSCRIPT_RUN = re.compile(f"[{''.join(_SUBSCRIPTS)}]+")
_WIDE_GROUPING = re.compile(r"(?<=[０-９])，(?=[０-９])")
_VULGAR = re.compile(r"([0-9０-９]?)([¼½¾⅐-⅞])")
_TRANSLATE = {
    **dict.fromkeys("−‐‑‒–﹣－", "-"),
    **{chr(ord("①") + index): f" ({index + 1}) " for index in range(20)},
    "⁄": "/", "∕": "/", "÷": "÷", "∶": ":", "，": ", ", "。": "。", "：": ":", "；": "; ",
    **dict.fromkeys("\u200b\u200c\u200d\u200e\u200f\u2060\ufeff\u00ad", ""),
}  # fmt: skip
_TRANSLATION = str.maketrans(_TRANSLATE)

_SIMPLE = r"\s*([-+]?\d{1,400}(?:\.\d{1,400})?)\s*"
_FRAC_COMMAND = r"\\[dtc]?frac(?![A-Za-z])\s*"
_FRAC = re.compile(rf"(\d?)\s{{0,3}}{_FRAC_COMMAND}(?:\{{{_SIMPLE}\}}|(\d))\s*(?:\{{{_SIMPLE}\}}|(\d))", re.ASCII)
_OTHER_FRAC = re.compile(_FRAC_COMMAND)
_TAG = re.compile(r"</?(?:b|i|u|p|br|strong|em|span|div|font|code|h\d)\b[^<>]{0,60}>", re.I)
_LATEX_TEXT = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox|operatorname|bm)\s*\{([^{}]{0,200})\}")
_LATEX_SPACE = re.compile(r"\\(?:left|right|displaystyle|quad|qquad|limits|big|Big)(?![A-Za-z])|\\[,;:! ]|~")
_LATEX_NAMES = (
    (re.compile(r"\\(?:times|cdot)(?![A-Za-z])"), "×"), (re.compile(r"\\div(?![A-Za-z])"), "÷"),
    (re.compile(r"\\pi(?![A-Za-z])"), "π"), (re.compile(r"\\(?:approx|simeq)(?![A-Za-z])"), "≈"),
    (re.compile(r"\\(?:leq?|leqslant|lt)(?![A-Za-z])|<="), "≤"),
    (re.compile(r"\\(?:geq?|geqslant|gt)(?![A-Za-z])|(?<![=-])>="), "≥"),
    (re.compile(r"\\neq?(?![A-Za-z])|!="), "≠"), (re.compile(r"\\pm(?![A-Za-z])"), "±"),
    (re.compile(r"\\sqrt(?![A-Za-z])\s*"), "√"),
    (re.compile(r"\^\s*\{?\s*(?:\\circ|°)\s*\}?|\\degree(?![A-Za-z])"), "°"),
)  # fmt: skip
_SIGNED_MONEY = re.compile(r"-\s?\\?[$£€¥]\s?(?=[\d.])")
_STARS = re.compile(r"(?<!\d)\*\*|\*\*(?!\d)|(?<!\w)__|__(?!\w)|`")


def without_thought(text: str) -> str | None:
    """The part after the chain of thought (`<think>...</think>` and its kin).

    None when a thought was begun and never ended: such an output was cut before it gave an answer.
    """
    end = 0
    for match in _THOUGHT_END.finditer(text):
        end = match.end()
    rest = text[end:]
    return None if _THOUGHT_START.search(rest) else rest


def normalise(text: str) -> str:
    """One plain spelling: NFKC, ASCII digits and minus, `a/b` for simple LaTeX fractions, no Markdown emphasis.

    Keeps `\\boxed{...}` and line breaks. Powers keep their meaning (`5²` becomes `5^2`, never `52`).
    """
    text = text[-MAX_CHARS:]
    text = _SUPERSCRIPT_RUN.sub(lambda m: "^" + "".join(_SUPERSCRIPTS[c] for c in m[0]), text)
    text = _SUBSCRIPT_RUN.sub(lambda m: "_" + "".join(_SUBSCRIPTS[c] for c in m[0]), text)
    text = _WIDE_GROUPING.sub(",", text)
    text = _VULGAR.sub(lambda m: f"{m[1]} {unicodedata.normalize('NFKC', m[2])}", text)
    text = text.translate(_TRANSLATION)
    text = unicodedata.normalize("NFKC", text).translate(_TRANSLATION)[-MAX_CHARS:]
    return _plain_latex(text)


def _plain_latex(text: str) -> str:
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    text = re.sub(r",\s?\\!\s?", ",", text.replace("{,}", ",").replace("\\%", "%"))
    text = _SIGNED_MONEY.sub("-", text)
    text = text.replace("\\$", " ").replace("$", " ")
    text = re.sub(r"\\[()\[\]]", " ", text)
    text = _LATEX_TEXT.sub(r" \1 ", text)
    text = _LATEX_SPACE.sub(" ", text)
    for pattern, plain in _LATEX_NAMES:
        text = pattern.sub(plain, text)
    text = _FRAC.sub(_fraction, text)
    text = _OTHER_FRAC.sub(OPAQUE, text)
    text = _TAG.sub(" ", text)
    return _STARS.sub("", text)


def _fraction(match: re.Match[str]) -> str:
    whole = f"{match[1]} " if match[1] else ""
    return f"{whole}{match[2] or match[3]}/{match[4] or match[5]}"


def canonical(text: str) -> str:
    """For answers that are no number: compares by letters and signs only, without spaces, case or a final stop."""
    text = re.sub(r"\\boxed|\\[()\[\]]|[${}]", "", normalise(text))
    text = re.sub(r"\s+", "", text).lower().strip(".。,;:!?'\"")
    return text[1:-1] if re.fullmatch(r"\(\w+\)", text) else text
