"""A grpc.aio server with our layers, limits and credentials."""

from __future__ import annotations

import grpc.aio

from rlctl.core.errors import ConfigError
from rlctl.rpc import auth
from rlctl.rpc.address import check_bind, is_wildcard, join_address
from rlctl.rpc.config import ServerConfig
from rlctl.rpc.gate import Gate
from rlctl.rpc.interceptors import Layer, Layers, limit_time, pass_gate, require_token, translate_errors
from rlctl.rpc.metrics import measure_call
from rlctl.rpc.tls import server_credentials


def build_server(config: ServerConfig, gate: Gate) -> grpc.aio.Server:
    """A server without servicers, not bound yet. Raises ConfigError."""
    token = auth.read_token(config.token_file)
    size = config.max_message_mb << 20
    always: list[Layer] = [measure_call, translate_errors]
    if token is not None:
        always.append(require_token(token))
    layers = Layers(always, [pass_gate(gate), limit_time(config.call_timeout_s)], size)
    return grpc.aio.server(
        interceptors=[layers],
        options=[
            ("grpc.max_send_message_length", size),
            ("grpc.max_receive_message_length", size),
            # Two servers on one port would share its calls without a word.
            ("grpc.so_reuseport", 0),
            # A client that vanished without closing has its calls cancelled.
            ("grpc.keepalive_time_ms", 20_000),
            ("grpc.keepalive_timeout_ms", 20_000),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
            # Clients ping idle connections too, and are not cut off for it.
            ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
            ("grpc.http2.max_ping_strikes", 0),
        ],
    )


def bind(server: grpc.aio.Server, config: ServerConfig) -> str:
    """Binds to `config.listen`; returns the address that clients are told. Raises ConfigError."""
    host, port = check_bind(config.listen, encrypted=config.tls is not None, setting="listen")
    if config.advertise is None and config.registry is not None and is_wildcard(host):
        raise ConfigError(
            f"listen: {config.listen!r} is every interface, so set advertise to the host:port that clients reach",
            setting="advertise",
        )
    target = join_address(host, port)
    try:
        if config.tls is not None:
            bound = server.add_secure_port(target, server_credentials(config.tls))
        else:
            bound = server.add_insecure_port(target)
    except RuntimeError as error:
        raise ConfigError(
            f"listen: cannot listen on {target}; is the port taken? Free it or name another (port 0 takes a free one)",
            setting="listen",
        ) from error
    return config.advertise or join_address(host, bound)
