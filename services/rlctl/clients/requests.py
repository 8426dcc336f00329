"""What the clients do to requests before they leave."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from google.protobuf.message import Message

from rlctl.core.errors import ResourceExhaustedError

M = TypeVar("M", bound=Message)

#: What the tag and the length of a repeated message take at most, bytes.
ITEM_OVERHEAD = 6


def with_request_id(request: M) -> M:
    """The request itself if it has a `request_id`, else a copy with a new one."""
    given: Any = request
    if given.request_id:
        return request
    copy: Any = type(request)()
    copy.CopyFrom(request)
    copy.request_id = uuid.uuid4().hex
    return copy  # type: ignore[no-any-return]


def split(items: Iterable[M], limit_bytes: int) -> Iterator[list[M]]:
    """Items in order, in lists that each fit a message of `limit_bytes`.

    Raises ResourceExhaustedError when one item alone is over the limit.
    """
    part: list[M] = []
    size = 0
    for index, item in enumerate(items):
        more = item.ByteSize() + ITEM_OVERHEAD
        if more > limit_bytes:
            raise ResourceExhaustedError(
                f"item {index} takes {more:,} bytes; a message holds {limit_bytes:,} at most", limit=limit_bytes
            )
        if part and size + more > limit_bytes:
            yield part
            part, size = [], 0
        part.append(item)
        size += more
    if part:
        yield part
