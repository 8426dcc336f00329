"""A remote reward over HTTP that can fail, go away and come back."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class RemoteReward:
    """The reward is the share of digits in a response; use as a context."""

    def __init__(self) -> None:
        self.status = 200
        self.calls = 0
        self._port = 0
        self._server: ThreadingHTTPServer | None = None

    def __enter__(self) -> RemoteReward:
        self.come()
        return self

    def __exit__(self, *_: object) -> None:
        self.go()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/reward"

    def come(self) -> None:
        """Listens, always at the same port."""
        remote = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                remote.calls += 1
                answer = json.dumps({"rewards": [_digits(*pair) for pair in zip(*_texts(asked), strict=True)]})
                body = answer.encode() if remote.status == 200 else b"no disk space left"
                self.send_response(remote.status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        self._port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def go(self) -> None:
        """Nothing listens any more."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


def _texts(asked: dict[str, list[str]]) -> tuple[list[str], list[str]]:
    return asked["query"], asked["prompts"]


def _digits(query: str, prompt: str) -> float:
    return sum(letter.isdigit() for letter in query[len(prompt) :]) / 8
