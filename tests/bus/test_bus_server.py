"""Starting and stopping our own nats-server."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
from pathlib import Path

import pytest

from rlctl.bus.server import NatsServer
from rlctl.core.errors import ConfigError, InternalError


def test_a_busy_port_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} on 127.0.0.1 is busy: .* set another port"):
            NatsServer(tmp_path, port=port).start()


def test_a_second_server_on_the_same_folder_is_refused_even_when_its_parent_is_gone(tmp_path: Path) -> None:
    first = NatsServer(tmp_path)
    first.start()
    try:
        with pytest.raises(ConfigError, match=rf"nats-server \(process {first.pid}\) still uses .*kill {first.pid}"):
            NatsServer(tmp_path).start()
    finally:
        first.stop()
    second = NatsServer(tmp_path)
    second.start()
    second.stop()


def test_a_restart_keeps_the_port(tmp_path: Path) -> None:
    server = NatsServer(tmp_path)
    url = server.start()
    assert server.process is not None
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait()
    assert server.start() == url
    server.stop()
    assert server.process.returncode is not None
    assert list(tmp_path.glob("*.ports")) == []


def test_every_write_is_synced_and_limits_are_set(tmp_path: Path) -> None:
    server = NatsServer(tmp_path, max_payload_mb=3)
    server.start()
    server.stop()
    settings = json.loads((tmp_path / "nats.json").read_text())
    assert settings["jetstream"]["sync_interval"] == "always"
    assert settings["max_payload"] == 3 * 1024 * 1024 + 64 * 1024
    assert settings["host"] == "127.0.0.1"
    assert stat.S_IMODE((tmp_path / "nats.json").stat().st_mode) == 0o600


def test_outside_loopback_tls_is_a_must(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"0\.0\.0\.0 would listen outside loopback without TLS"):
        NatsServer(tmp_path, host="0.0.0.0")


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file where the store should be")
    with pytest.raises(InternalError, match=r"nats-server ended with code 1: .*storage directory"):
        NatsServer(tmp_path).start()
