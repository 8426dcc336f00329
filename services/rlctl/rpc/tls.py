"""TLS of servers and clients from PEM files, checked when the process starts."""

from __future__ import annotations

import ssl
from pathlib import Path

import grpc

from rlctl.core.errors import ConfigError
from rlctl.rpc.config import TLSConfig


def server_credentials(tls: TLSConfig) -> grpc.ServerCredentials:
    """Of a gRPC server; with `ca` set, a client must show a certificate from it. Raises ConfigError."""
    cert, key = _pair(tls, "a server")
    root = _read(tls.ca, "tls.ca") if tls.ca is not None else None
    return grpc.ssl_server_credentials([(key, cert)], root, require_client_auth=root is not None)


def server_context(tls: TLSConfig) -> ssl.SSLContext:
    """Of an HTTPS server, by the same files and rules. Raises ConfigError."""
    _pair(tls, "a server")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(str(tls.cert), str(tls.key))
    if tls.ca is not None:
        context.load_verify_locations(str(tls.ca))
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def channel_credentials(tls: TLSConfig) -> grpc.ChannelCredentials:
    """Of a client; without `ca` the server must be known to gRPC's built-in authorities. Raises ConfigError."""
    root = _read(tls.ca, "tls.ca") if tls.ca is not None else None
    if tls.cert is None and tls.key is None:
        return grpc.ssl_channel_credentials(root)
    cert, key = _pair(tls, "mutual TLS")
    return grpc.ssl_channel_credentials(root, key, cert)


def channel_options(tls: TLSConfig | None) -> list[tuple[str, str]]:
    """Options by which a client expects another name than the address in the server's certificate."""
    if tls is None or tls.server_name is None:
        return []
    return [("grpc.ssl_target_name_override", tls.server_name), ("grpc.default_authority", tls.server_name)]


def _pair(tls: TLSConfig, who: str) -> tuple[bytes, bytes]:
    """Bytes of certificate and key that belong together."""
    if tls.cert is None or tls.key is None:
        raise ConfigError(f"tls: {who} needs both tls.cert and tls.key")
    cert, key = _read(tls.cert, "tls.cert"), _read(tls.key, "tls.key")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(str(tls.cert), str(tls.key), password=_no_password)
    except ssl.SSLError as error:
        raise ConfigError(
            f"tls: {tls.cert} and {tls.key} are no PEM certificate and unencrypted key that belong together "
            f"({error.reason or error})"
        ) from error
    return cert, key


def _no_password() -> bytes:
    """Keeps OpenSSL from asking on the terminal for the password of an encrypted key."""
    return b""


def _read(path: Path, setting: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{setting}: cannot read {path}: {error.strerror}", setting=setting) from error
