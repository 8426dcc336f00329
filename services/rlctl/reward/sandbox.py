"""A spawned process for code that is not ours, with limits and without our environment.

JSON lines over its stdin and stdout; what it prints is logged, a bounded part of it a call. Nothing it does
(raise, exit, hang, print without end, take all memory) harms the service; it is killed with its whole process
group and started anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlctl.core.errors import ConfigError

_log = logging.getLogger("rlctl.reward")
_CHILD = Path(__file__).with_name("sandbox_child.py")
_KEPT_ENVIRONMENT = ("PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "SYSTEMROOT")
#: Longest answer, bytes.
ANSWER_BYTES = 64 << 20
#: Printed bytes that reach the log a call; the rest is thrown away.
PRINTED_BYTES = 16 << 10
#: Seconds that loading the code may take.
LOAD_S = 180.0
_TAIL_BYTES = 500


class SandboxError(Exception):
    """A call that gave no answer: a reason of `Fault` and a message."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class Sandbox:
    """Runs `sandbox_child.py` with `arguments` (`["function", FILE]`, `["task", NAME]`); one call at a time."""

    def __init__(self, name: str, arguments: Sequence[str], memory_mb: int) -> None:
        self._name = name
        self._command = [sys.executable, "-I", str(_CHILD), str(memory_mb), *arguments]
        self._lock = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._printer: asyncio.Task[None] | None = None
        self._folder = tempfile.mkdtemp(prefix="rlctl-reward-")
        self._calls = 0
        self._printed_left = PRINTED_BYTES
        self._tail = b""

    @property
    def pid(self) -> int | None:
        """Of the process now running, if any."""
        return self._process.pid if self._process is not None else None

    async def load(self) -> None:
        """Starts the process and loads the code. Raises ConfigError with what the code said."""
        async with self._lock:
            try:
                await self._started()
            except SandboxError as error:
                raise ConfigError(f"{self._name}: {error.message}", reason=error.reason) from error

    async def call(self, request: dict[str, Any], timeout_s: float) -> list[dict[str, Any]]:
        """The results of a request. Raises SandboxError; the process is gone then, and comes back at the next call."""
        async with self._lock:
            process = await self._started()
            self._calls += 1
            self._printed_left = PRINTED_BYTES
            try:
                answer = await asyncio.wait_for(self._exchange(process, {"id": self._calls, **request}), timeout_s)
            except TimeoutError as error:
                await self._kill()
                raise SandboxError("REWARD_TIMEOUT", f"took longer than {timeout_s:g} s") from error
            except BaseException:
                # Also when the caller gave up: an answer that comes later must not be taken for the next one's.
                await self._kill()
                raise
        if "reason" in answer:
            raise SandboxError(str(answer["reason"]), str(answer["message"]))
        results: list[dict[str, Any]] = answer["results"]
        return results

    async def close(self) -> None:
        """Ends the process and removes its folder."""
        await self._kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is not None and self._process.returncode is None:
            return self._process
        await self._kill()
        environment = {name: os.environ[name] for name in _KEPT_ENVIRONMENT if name in os.environ}
        environment |= {"HOME": self._folder, "TMPDIR": self._folder, "OMP_NUM_THREADS": "1"}
        process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=self._folder,
            env=environment,
            start_new_session=True,
            limit=ANSWER_BYTES,
        )
        self._process = process
        self._tail = b""
        self._printed_left = PRINTED_BYTES
        self._printer = asyncio.create_task(self._read_prints(process))
        try:
            answer = await asyncio.wait_for(self._read(process), LOAD_S)
        except TimeoutError as error:
            await self._kill()
            raise SandboxError("REWARD_TIMEOUT", f"could not be loaded within {LOAD_S:g} s") from error
        except BaseException:
            await self._kill()
            raise
        if "failed" in answer:
            await self._kill()
            raise SandboxError("REWARD_RAISED", f"cannot be loaded: {answer['failed']}")
        return process

    async def _exchange(self, process: asyncio.subprocess.Process, request: dict[str, Any]) -> dict[str, Any]:
        assert process.stdin is not None
        process.stdin.write(json.dumps(request).encode() + b"\n")
        # A pipe broken here is told by the answer that does not come.
        with contextlib.suppress(ConnectionError):
            await process.stdin.drain()
        answer = await self._read(process)
        if answer.get("id") != request["id"]:
            raise SandboxError("REWARD_BAD_RESULT", "the process answered something that was not asked")
        return answer

    async def _read(self, process: asyncio.subprocess.Process) -> dict[str, Any]:
        assert process.stdout is not None
        try:
            line = await process.stdout.readuntil(b"\n")
        except asyncio.IncompleteReadError as error:
            code = await process.wait()
            if self._printer is not None:
                await asyncio.wait({self._printer}, timeout=1.0)
            last = self._tail.decode(errors="replace").strip()
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            raise SandboxError(
                "REWARD_CRASHED", f"its process ended ({how})" + (f": {last}" if last else "")
            ) from error
        except (asyncio.LimitOverrunError, ValueError) as error:
            raise SandboxError("REWARD_BAD_RESULT", f"the answer is above {ANSWER_BYTES >> 20} MiB") from error
        try:
            answer = json.loads(line)
        except ValueError as error:
            raise SandboxError("REWARD_BAD_RESULT", "the process wrote into the answers") from error
        if not isinstance(answer, dict):
            raise SandboxError("REWARD_BAD_RESULT", "the process wrote into the answers")
        return answer

    async def _read_prints(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        while chunk := await process.stderr.read(1 << 16):
            self._tail = (self._tail + chunk[-_TAIL_BYTES:])[-_TAIL_BYTES:]
            shown = chunk[: self._printed_left]
            if not shown:
                continue
            self._printed_left -= len(shown)
            cut = "" if self._printed_left else " [more is not shown]"
            _log.info("%s printed: %s%s", self._name, shown.decode(errors="replace").rstrip(), cut)

    async def _kill(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        if self._printer is not None:
            self._printer.cancel()
            await asyncio.wait({self._printer})
