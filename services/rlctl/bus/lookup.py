"""Whether a stream holds a message with a given subject.

Questions asked at the same time share one call: a step's worth of them costs one round trip.
"""

from __future__ import annotations

import asyncio
from typing import Any

from rlctl.bus.connection import Connection

#: Above so many messages the whole list of subjects is longer than single answers.
_LONG_LIST = 4096


class Lookup:
    """Questions about the subjects of one stream, answered by its leader."""

    def __init__(self, connection: Connection, stream: str, subjects: str) -> None:
        """`subjects` is the pattern of all subjects of the stream."""
        self._connection = connection
        self._stream = stream
        self._subjects = subjects
        self._waiting: dict[str, asyncio.Future[bool]] = {}
        self._task: asyncio.Task[None] | None = None
        self._messages = 0

    async def exists(self, subject: str) -> bool:
        """Raises ApiError (code 404 without the stream) and UnavailableError."""
        future = self._waiting.get(subject)
        if future is None:
            future = self._waiting[subject] = asyncio.get_running_loop().create_future()
        if self._task is None:
            self._task = asyncio.create_task(self._answer())
        return await asyncio.shield(future)

    async def _answer(self) -> None:
        # What else is ready to run may ask too.
        await asyncio.sleep(0)
        waiting, self._waiting, self._task = self._waiting, {}, None
        try:
            if len(waiting) > 2 and self._messages < _LONG_LIST:
                held = await self._held(self._subjects)
            else:
                held = set().union(*await asyncio.gather(*(self._held(subject) for subject in waiting)))
        except Exception as error:
            for future in waiting.values():
                future.set_exception(error)
                future.exception()
            return
        for subject, future in waiting.items():
            future.set_result(subject in held)

    async def _held(self, pattern: str) -> set[str]:
        info: dict[str, Any] = await self._connection.api(f"STREAM.INFO.{self._stream}", {"subjects_filter": pattern})
        self._messages = info["state"]["messages"]
        return set(info["state"].get("subjects") or {})
