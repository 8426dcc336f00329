"""What goes wrong between us and NATS, before it is told to anybody."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from rlctl.core.errors import InternalError, RlctlError


class NotServedError(Exception):
    """Nobody answers at this subject: no such stream or consumer, or JetStream is off."""


class InterruptedCallError(Exception):
    """The connection broke, or the reply took too long; whether the call took effect is unknown."""


class ApiError(Exception):
    """JetStream refused a call."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error.get("description", ""))
        self.code: int = error.get("code", 0)
        self.err_code: int = error.get("err_code", 0)
        self.description: str = error.get("description", "")


def refused(error: ApiError, what: str) -> RlctlError:
    """An API error that we have no remedy for."""
    return InternalError(f"NATS refused to {what}: {error.description} (code {error.code}, {error.err_code})")


def shown(url: str) -> str:
    """URLs without user and password, for messages."""
    parts = []
    for part in url.split(","):
        split = urlsplit(part.strip())
        host = split.netloc.rsplit("@", 1)[-1]
        parts.append(f"{split.scheme}://{host}" if split.scheme else host)
    return ",".join(parts)
