"""Ports that are chosen before somebody listens on them."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
#: Below it lie the ports of well-known services.
_LOWEST = 10_000
_TRIES = 100


def free_port(address: str = "127.0.0.1") -> int:
    """A port of this machine's `address` on which nothing listens.

    The kernel takes ports for outgoing connections from a range of its own. One of those could be taken before it is
    listened on, or by a client that tries to reach a server that is away and so connects to itself. So the port lies
    outside of that range, where the range leaves room.
    """
    choices = random.SystemRandom()
    first = _first_outgoing()
    for _ in range(_TRIES if first - _LOWEST > 10 * _TRIES else 0):
        port = choices.randrange(_LOWEST, first)
        if _is_free(address, port):
            return port
    return _bound(address, 0)


def _first_outgoing() -> int:
    try:
        return int(_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0


def _is_free(address: str, port: int) -> bool:
    try:
        return _bound(address, port) == port
    except OSError:
        return False


def _bound(address: str, port: int) -> int:
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.bind((address, port))
        return int(probe.getsockname()[1])
