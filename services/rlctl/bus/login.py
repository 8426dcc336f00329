"""User, password and TLS of a connection, as nats-py takes them."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any

import nats.errors

from rlctl.bus.config import BusConfig
from rlctl.core.errors import ConfigError


def login(config: BusConfig, encrypted: Callable[[], bool]) -> dict[str, Any]:
    """Options of nats-py's `connect`; `encrypted` says whether the server at hand speaks TLS. Raises ConfigError."""
    options: dict[str, Any] = {}
    if config.ca is not None:
        try:
            options["tls"] = ssl.create_default_context(cafile=str(config.ca))
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"bus.ca: cannot read {config.ca}: {error}") from error
    if config.user is not None:
        if config.password_file is None:
            raise ConfigError("bus.user needs bus.password_file, the file with its password")
        try:
            password = config.password_file.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ConfigError(f"bus.password_file: cannot read {config.password_file}: {error}") from error

        def guarded() -> str:
            if config.ca is not None and not encrypted():
                raise nats.errors.Error("the server offers no TLS, and bus.ca demands it")
            return password

        options.update(user=config.user, password=guarded, inbox_prefix=f"_INBOX.{config.user}")
    return options
