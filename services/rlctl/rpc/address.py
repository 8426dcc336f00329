"""Addresses: `host:port`, `[v6]:port`, and which of them stay on this machine."""

from __future__ import annotations

import ipaddress
import socket

from rlctl.core.errors import ConfigError


def split_address(address: str, setting: str = "address") -> tuple[str, int]:
    """Host (without brackets) and port. Raises ConfigError naming `setting`."""
    host, colon, port = address.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not bare or not port.isdecimal() or int(port) > 65535 or (":" in bare and not bracketed):
        raise ConfigError(
            f"{setting}: {address!r} is no address; write host:port, for example 127.0.0.1:50051 or [::1]:50051",
            setting=setting,
        )
    return bare, int(port)


def join_address(host: str, port: int) -> str:
    """The inverse of `split_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether a host stays on this machine: every address it resolves to does. False if it resolves to none."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return bool(found) and all(ipaddress.ip_address(str(entry[4][0]).partition("%")[0]).is_loopback for entry in found)


def is_wildcard(host: str) -> bool:
    """Whether a host means every interface (`0.0.0.0`, `::`)."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def check_bind(address: str, *, encrypted: bool, setting: str) -> tuple[str, int]:
    """Host and port of a `listen` setting. Raises ConfigError where it would be open to the network in plaintext."""
    host, port = split_address(address, setting)
    if not encrypted and not is_loopback(host):
        raise ConfigError(
            f"{setting}: {address!r} can be reached from outside this machine, so it needs TLS: set tls.cert and "
            f"tls.key (and tls.ca to demand client certificates), or listen on 127.0.0.1",
            setting=setting,
        )
    return host, port
