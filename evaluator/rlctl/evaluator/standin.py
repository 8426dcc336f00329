"""A local stand-in for a judge's API: speaks the OpenAI chat protocol and misbehaves on order.

For `rlctl eval --demo`, tests and benchmarks; `python -m rlctl.evaluator.standin --latency 1` serves it by itself.
Verdicts are computed from the sample by plain rules, so the same sample always gets the same one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

from rlctl.evaluator.records import digest
from rlctl.grading.grade import grade_pair
from rlctl.grading.text import without_thought

#: What can be ordered, one word a request: how the request is answered.
FAULTS = (
    "ok", "429", "429-retry-after", "400", "401", "402", "422", "500", "503", "blank", "blank-lines",
    "blank-lines-forever", "fenced", "cut", "length", "python", "think", "missing-keys", "prose", "error-200",
    "not-json", "no-choices", "drip", "reset", "reset-midway",
)  # fmt: skip

_SAMPLE = re.compile(
    r"Problem A: (?P<question_a>.*?)\nReference answer A: (?P<a>.*?)\n"
    r"Problem B: (?P<question_b>.*?)\nReference answer B: (?P<b>.*?)\n</problems>\s*<prompt>\n(?P<prompt>.*?)"
    r"\n</prompt>\s*<output>\n(?P<output>.*)\n</output>",
    re.S,
)
_SWITCH = re.compile(r"(?:问题|题|problem\s?|回到|back to |继续|看|想)([AB])", re.I)


def verdict_by_rules(user: str) -> dict[str, Any]:
    """A plausible verdict on the built-in template's sample."""
    found = _SAMPLE.search(user)
    if found is None:
        return {"distinguishes": True, "switches": False, "answer_a": None, "a_right": False, "answer_b": None,
                "b_right": False, "reason": "no sample found"}  # fmt: skip
    output = found["output"]
    thought = output[: len(output) - len(without_thought(output) or "")]
    marks = [mark.upper() for mark in _SWITCH.findall(thought or output)]
    moves = sum(one != other for one, other in pairwise(marks))
    ends = re.search(r"最终答案|final answer|答案[A：:]|answer a", output, re.I)
    places = found["prompt"].find(found["question_a"]), found["prompt"].find(found["question_b"])
    swapped = places[0] > places[1] >= 0 or found["question_a"].startswith("the second problem")
    golds = (found["b"], found["a"]) if swapped else (found["a"], found["b"])
    pair = grade_pair(output, *golds)
    a, b = (pair.b, pair.a) if swapped else (pair.a, pair.b)
    return {
        "distinguishes": bool(thought.strip() or ends) and pair.a.extracted is not None,
        "switches": moves >= 2,
        "answer_a": a.extracted,
        "a_right": None if found["a"] == "unknown" else a.equal,
        "answer_b": b.extracted,
        "b_right": None if found["b"] == "unknown" else b.equal,
        "reason": f"{moves} moves between the problems",
    }


class StandIn:
    """The server. `faults` are used up one a request, in order of arrival; then every request is answered well.

    verdict: gives the verdict on a sample, or a text that is sent as it is. token: the bearer token it demands, empty
    for none. calls: how often each sample was asked.
    """

    def __init__(
        self,
        faults: Iterable[str] = (),
        *,
        latency_s: float = 0.0,
        token: str = "",
        model: str = "stand-in-1",
        verdict: Callable[[str], dict[str, Any] | str] = verdict_by_rules,
    ) -> None:
        self.faults = deque(faults)
        unknown = set(self.faults) - set(FAULTS)
        if unknown:
            raise ValueError(f"unknown faults {sorted(unknown)}; known: {', '.join(FAULTS)}")
        self.calls: Counter[str] = Counter()
        self.requests: list[dict[str, Any]] = []
        self.keep_requests = False
        self.most_at_once = 0
        self._at_once = 0
        self._latency_s = latency_s
        self._token = token
        self._model = model
        self._verdict = verdict
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self, port: int = 0) -> str:
        """Listens on loopback; returns the base URL."""
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", port, limit=64 * 2**20, backlog=1024)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.close()
        await self._server.wait_closed()

    async def __aenter__(self) -> StandIn:
        self.base_url = await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while await self._request(reader, writer):
                pass
        writer.close()
        self._writers.discard(writer)

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in head.split("\r\n")[1:] if line)
        }
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        if head.startswith("GET /calls"):
            return await _send(writer, 200, dict(self.calls))
        if not head.startswith("POST /v1/chat/completions"):
            return await _send(writer, 404, _error("no such path"))
        if self._token and headers.get("authorization") != f"Bearer {self._token}":
            return await _send(writer, 401, _error(f"key {headers.get('authorization', '')} is not known"))
        request = json.loads(body)
        user = request["messages"][-1]["content"]
        self.calls[digest(user)[:16]] += 1
        if self.keep_requests:
            self.requests.append(request)
        fault = self.faults.popleft() if self.faults else "ok"
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            await asyncio.sleep(self._latency_s)
            return await self._answer(writer, fault, request, user)
        finally:
            self._at_once -= 1

    async def _answer(self, writer: asyncio.StreamWriter, fault: str, request: dict[str, Any], user: str) -> bool:
        if fault == "429-retry-after":
            return await _send(writer, 429, _error("slow down"), {"Retry-After": "0.1"})
        if fault.isdigit():
            return await _send(writer, int(fault), _error(f"ordered {fault}"))
        if fault == "reset":
            writer.transport.abort()
            return False
        if fault == "error-200":
            return await _send(writer, 200, _error("overloaded inside"))
        if fault == "no-choices":
            return await _send(writer, 200, {"id": "x", "choices": []})
        if fault == "not-json":
            return await _send(writer, 200, b"<html>gateway</html>")
        payload = json.dumps(self._completion(fault, request, user), ensure_ascii=False).encode()
        if fault.startswith("blank-lines"):
            return await _blank_lines(writer, payload, for_ever=fault.endswith("forever"))
        if fault in ("drip", "reset-midway"):
            return await _drip(writer, payload, abort=fault == "reset-midway")
        return await _send(writer, 200, payload)

    def _completion(self, fault: str, request: dict[str, Any], user: str) -> dict[str, Any]:
        verdict = self._verdict(user)
        text = verdict if isinstance(verdict, str) else json.dumps(verdict, ensure_ascii=False)
        content = {
            "blank": " \n\n ",
            "fenced": f"Here is my verdict:\n```json\n{text}\n```",
            "cut": text[: len(text) // 2],
            "length": text[: len(text) // 2],
            "python": str(verdict),
            "think": f'<think>Maybe {{"a_right": 1}}?</think>\n{text}',
            "missing-keys": '{"verdict": true}',
            "prose": "I think that both are right.",
        }.get(fault, text)
        prompt = sum(len(message["content"]) for message in request["messages"]) // 2
        hit = len(request["messages"][0]["content"]) // 2 if sum(self.calls.values()) > 1 else 0
        return {
            "id": "stand-in", "object": "chat.completion", "created": 0, "model": self._model,
            "choices": [{
                "index": 0, "finish_reason": "length" if fault == "length" else "stop",
                "message": {"role": "assistant", "content": content},
            }],
            "usage": {
                "prompt_tokens": prompt, "completion_tokens": len(content) // 2,
                "total_tokens": prompt + len(content) // 2,
                "prompt_cache_hit_tokens": hit, "prompt_cache_miss_tokens": prompt - hit,
                "completion_tokens_details": {"reasoning_tokens": 0},
            },
        }  # fmt: skip


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "stand_in_error", "code": None}}


async def _send(
    writer: asyncio.StreamWriter, status: int, body: dict[str, Any] | bytes, headers: dict[str, str] | None = None
) -> bool:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = {"Content-Type": "application/json", "Content-Length": str(len(raw)), **(headers or {})}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    writer.write(f"HTTP/1.1 {status} X\r\n{head}\r\n".encode() + raw)
    await writer.drain()
    return True


_CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"


async def _blank_lines(writer: asyncio.StreamWriter, payload: bytes, *, for_ever: bool) -> bool:
    """Blank lines before the body, as an API does to keep the connection alive."""
    writer.write(_CHUNKED)
    count = 0
    while for_ever or count < 5:
        writer.write(b"1\r\n\n\r\n")
        await writer.drain()
        await asyncio.sleep(0.05)
        count += 1
    writer.write(f"{len(payload):x}\r\n".encode() + payload + b"\r\n0\r\n\r\n")
    await writer.drain()
    return True


async def _drip(writer: asyncio.StreamWriter, payload: bytes, *, abort: bool) -> bool:
    """The body in ten slow pieces, or half of it and then a broken connection."""
    writer.write(
        f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n".encode()
    )
    step = max(1, len(payload) // 10)
    for begin in range(0, len(payload), step):
        writer.write(payload[begin : begin + step])
        await writer.drain()
        await asyncio.sleep(0.02)
        if abort and begin > len(payload) // 2:
            writer.transport.abort()
            return False
    return True


async def _serve(arguments: argparse.Namespace) -> None:
    server = StandIn(arguments.faults.split(",") if arguments.faults else (), latency_s=arguments.latency)
    sys.stdout.write(f"{await server.start(arguments.port)}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A stand-in for a judge's API")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--latency", type=float, default=0.0, help="seconds before each answer")
    parser.add_argument("--faults", default="", help=f"comma-separated, one a request: {', '.join(FAULTS)}")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(parser.parse_args()))
