"""Ports chosen before somebody listens on them."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from rlctl.core import ports


def test_a_port_is_free_and_none_that_an_outgoing_connection_takes() -> None:
    chosen = {ports.free_port() for _ in range(20)}
    assert len(chosen) > 10
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    if first > 12_000:
        assert all(10_000 <= port < first for port in chosen)
    with socket.create_server(("127.0.0.1", chosen.pop())):
        pass


def test_one_that_is_in_use_is_not_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", ports.free_port())) as listener:
        taken = listener.getsockname()[1]

        class Stubborn:
            def randrange(self, low: int, high: int) -> int:
                return taken

        monkeypatch.setattr(ports.random, "SystemRandom", Stubborn)
        assert ports.free_port() != taken


@pytest.mark.parametrize("known", ["1024\t65535\n", "nonsense", None])
def test_where_the_range_leaves_no_room_the_kernel_chooses(
    known: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if known is not None:
        (tmp_path / "range").write_text(known)
    monkeypatch.setattr(ports, "_RANGE", tmp_path / "range")
    assert ports.free_port() >= 1024
