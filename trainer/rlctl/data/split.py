"""Parts of a data set by a hash of each row's key: stable whatever the size, order and seed of the data."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping


def row_key(text: str, pattern: str) -> str:
    """The key of a prompt: the sorted matches of `pattern`, or the text itself for an empty pattern.

    >>> row_key("9 + 15 =", r"\\d+") == row_key("15 + 9 =", r"\\d+")
    True
    """
    if not pattern:
        return text
    return json.dumps(sorted(match.group() for match in re.finditer(pattern, text)))


def part_of(key: str, shares: Mapping[str, float]) -> str:
    """The part a key lies in, or the empty text when the shares sum to less than 1 and it lies in none."""
    place = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") / 2**64
    edge = 0.0
    for name, share in shares.items():
        edge += share
        if place < edge:
            return name
    # Shares that sum to 1 may sum to a hair less in floating point.
    return name if shares and edge > 1 - 1e-9 else ""
