"""Prometheus metrics of calls, and the page that shows all metrics of a process.

| name | labels | meaning |
|---|---|---|
| `rlctl_rpc_calls_total` | service, method, code | calls answered |
| `rlctl_rpc_seconds` | service, method | histogram of their durations |
| `rlctl_rpc_in_flight` | service, method | calls in work |
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import grpc
from prometheus_client import Counter, Gauge, Histogram, make_wsgi_app

from rlctl.core.errors import AuthenticationError, ConfigError
from rlctl.rpc import auth
from rlctl.rpc.address import check_bind, join_address
from rlctl.rpc.config import TLSConfig
from rlctl.rpc.interceptors import Call
from rlctl.rpc.tls import server_context

CALLS = Counter("rlctl_rpc_calls", "Calls answered.", ["service", "method", "code"])
SECONDS = Histogram(
    "rlctl_rpc_seconds",
    "Seconds from the start of a call to its last answer.",
    ["service", "method"],
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000),
)
IN_FLIGHT = Gauge("rlctl_rpc_in_flight", "Calls in work.", ["service", "method"])

_CODE_NAMES = {code.value[0]: code.name for code in grpc.StatusCode}


@asynccontextmanager
async def measure_call(call: Call) -> AsyncIterator[None]:
    """The layer that counts and times a call."""
    service = call.service.rpartition(".")[2]
    in_flight = IN_FLIGHT.labels(service, call.method)
    begin = time.perf_counter()
    in_flight.inc()
    code = "CANCELLED"
    try:
        yield
        code = _code(call)
    except grpc.aio.AbortError:
        code = _code(call)
        raise
    finally:
        in_flight.dec()
        SECONDS.labels(service, call.method).observe(time.perf_counter() - begin)
        CALLS.labels(service, call.method, code).inc()


def _code(call: Call) -> str:
    code: Any = call.context.code()
    if isinstance(code, grpc.StatusCode):
        return code.name
    return _CODE_NAMES.get(code or 0, "UNKNOWN")


class MetricsPage:
    """`/metrics` of this process, served from a thread."""

    def __init__(self, server: WSGIServer, host: str) -> None:
        self.address = join_address(host, server.server_port)
        self._server = server
        self._thread = threading.Thread(target=server.serve_forever, name="rlctl-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread and frees the port."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def serve_metrics(listen: str, tls: TLSConfig | None = None, token: str | None = None) -> MetricsPage:
    """Serves every metric of prometheus_client's default registry at `listen` (port 0: a free one).

    With a token the page demands it as gRPC does. Raises ConfigError: a taken port, no TLS outside loopback.
    """
    host, port = check_bind(listen, encrypted=tls is not None, setting="metrics_listen")
    app = make_wsgi_app()
    server_class = _V6Server if ":" in host else _Server
    try:
        server = make_server(host, port, _guard(app, token) if token else app, server_class, _SilentHandler)
    except OSError as error:
        raise ConfigError(
            f"metrics_listen: cannot listen on {listen}: {error.strerror}; free the port or name another "
            f"(port 0 takes a free one)",
            setting="metrics_listen",
        ) from error
    if tls is not None:
        server.socket = server_context(tls).wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    return MetricsPage(server, host)


def _guard(app: Callable[..., Iterable[bytes]], token: str) -> Callable[..., Iterable[bytes]]:
    def guarded(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        try:
            auth.check(environ.get("HTTP_AUTHORIZATION"), token)
        except AuthenticationError as error:
            start_response("401 Unauthorized", [("Content-Type", "text/plain"), ("WWW-Authenticate", "Bearer")])
            return [error.message.encode()]
        return app(environ, start_response)

    return guarded


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _V6Server(_Server):
    address_family = socket.AF_INET6


class _SilentHandler(WSGIRequestHandler):
    timeout = 10

    def log_message(self, format: str, *args: Any) -> None:
        """Scrapes are not worth a line each."""
