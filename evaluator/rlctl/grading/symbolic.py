"""A second opinion on LaTeX answers by math-verify, where it is installed.

It knows sets, intervals, roots and equations, which the rules compare as text only; it cannot read numbers glued to
Chinese characters. It bounds its time by SIGALRM and so works on the main thread alone.
"""

from __future__ import annotations

import threading


def second_opinion(output: str, gold: str) -> bool | None:
    """Whether math-verify takes the answer of `output` for `gold`; None where it cannot be asked."""
    if threading.current_thread() is not threading.main_thread():
        return None
    try:
        from math_verify import parse, verify
    except ImportError:
        return None
    return bool(verify(parse(f"${gold}$" if "$" not in gold and "\\" in gold else gold), parse(output)))
