"""The journal of an evaluation: each raw reply, appended as it arrives and never asked for again.

One JSON object a line, of three kinds:

    {"ask": key, "attempt": n, ...}      before a call is made, so that calls in flight at a crash can be counted
    {"reply": key, "attempt": n, ...}    a reply of the API with HTTP 200 and a message, as it was
    {"failed": key, "attempt": n, ...}   the call ended without a reply; no verdict, asked again by the next run

A line cut by a crash is dropped. Replies stay on disk; memory holds where they stand.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlctl.core.errors import ConfigError, RlctlError
from rlctl.evaluator.prices import Usage, usage_of


class Stopped(RlctlError):
    """The run cannot go on; what is there is kept. The message says how to go on."""

    reason = "EVALUATION_STOPPED"


@dataclass(frozen=True, slots=True)
class Reply:
    """A journalled reply."""

    content: str
    finish_reason: str
    model: str
    usage: Mapping[str, Any]


class Journal:
    """Append-only, group-committed: `append` returns when the line is on disk.

    Use as `async with Journal(path) as journal`. Raises ConfigError when another evaluation writes to it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.asked = 0
        self.repeated = 0
        self.replies = 0
        self.usage: dict[str, Usage] = defaultdict(Usage)
        self._places: dict[str, dict[int, tuple[int, int]]] = defaultdict(dict)
        self._open_asks: set[tuple[str, int]] = set()
        self._size = 0
        self._file: int = -1
        self._waiting: list[asyncio.Future[None]] = []
        self._flusher: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")

    async def __aenter__(self) -> Journal:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise ConfigError(
                f"cannot write {self.path}: {error.strerror}; set output_dir to another folder"
            ) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._file)
            raise ConfigError(
                f"another evaluation is writing to {self.path.parent}; wait for it, or set output_dir"
            ) from None
        self._load()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._flusher is not None:
            await self._flusher
        self._thread.shutdown()
        os.close(self._file)

    def _load(self) -> None:
        with self.path.open("rb") as file:
            for raw in file:
                if not raw.endswith(b"\n"):
                    break
                try:
                    self._note(json.loads(raw), self._size, len(raw))
                except (ValueError, KeyError, TypeError, AttributeError) as error:
                    raise ConfigError(
                        f"{self.path} is damaged at byte {self._size} ({error}); move it aside to start anew"
                    ) from error
                self._size += len(raw)
        os.ftruncate(self._file, self._size)

    def _note(self, entry: dict[str, Any], offset: int, length: int) -> None:
        if "ask" in entry:
            slot = (entry["ask"], entry["attempt"])
            self.asked += 1
            if slot in self._open_asks:
                self.repeated += 1
            self._open_asks.add(slot)
        elif "reply" in entry:
            self._open_asks.discard((entry["reply"], entry["attempt"]))
            self._places[entry["reply"]][entry["attempt"]] = (offset, length)
            self.replies += 1
            self.usage[entry["judge"]].add(usage_of(entry["usage"], entry["model"]))
        else:
            self._open_asks.discard((entry["failed"], entry["attempt"]))

    def attempts(self, key: str) -> list[Reply]:
        """The replies of a key in order of attempt."""
        return [self._read(*place) for _, place in sorted(self._places.get(key, {}).items())]

    def count(self, key: str) -> int:
        """How many replies a key has."""
        return len(self._places.get(key, ()))

    def _read(self, offset: int, length: int) -> Reply:
        entry = json.loads(os.pread(self._file, length, offset))
        return Reply(entry["content"], entry["finish_reason"], entry["model"], entry["usage"])

    async def ask(self, key: str, attempt: int, **about: object) -> None:
        """Notes that a call is about to be made."""
        await self._append({"ask": key, "attempt": attempt, **about}, sync=False)

    async def reply(self, key: str, attempt: int, judge: str, reply: Reply) -> None:
        """Keeps a reply; on disk when this returns."""
        await self._append({
            "reply": key, "attempt": attempt, "judge": judge, "content": reply.content,
            "finish_reason": reply.finish_reason, "model": reply.model, "usage": dict(reply.usage),
        })  # fmt: skip

    async def failed(self, key: str, attempt: int, reason: str) -> None:
        """Notes that a call ended without a reply."""
        await self._append({"failed": key, "attempt": attempt, "reason": reason})

    async def _append(self, entry: dict[str, Any], *, sync: bool = True) -> None:
        raw = json.dumps(entry, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"
        self._write(raw, entry)
        if not sync:
            return
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(written)
        if self._flusher is None or self._flusher.done():
            self._flusher = asyncio.create_task(self._flush())
        await written

    def _write(self, raw: bytes, entry: dict[str, Any]) -> None:
        try:
            written = os.write(self._file, raw)
            if written != len(raw):
                # The next line must not begin within this one.
                os.ftruncate(self._file, self._size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise self._stopped(error) from error
        self._note(entry, self._size, len(raw))
        self._size += len(raw)

    def _stopped(self, error: OSError) -> Stopped:
        return Stopped(
            f"cannot write {self.path}: {error.strerror}. Every verdict that was written is kept: free some space and "
            "give the same command again; it asks only for what is missing."
        )

    async def _flush(self) -> None:
        """One fsync for all that wait."""
        while self._waiting:
            batch, self._waiting = self._waiting, []
            try:
                await asyncio.get_running_loop().run_in_executor(self._thread, os.fdatasync, self._file)
            except OSError as error:
                for future in batch:
                    if not future.done():
                        future.set_exception(self._stopped(error))
                continue
            for future in batch:
                if not future.done():
                    future.set_result(None)
