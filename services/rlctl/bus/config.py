"""Settings of the rollout bus."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from rlctl.core.config import Name, StrictConfig


class BusConfig(StrictConfig):
    """How to reach NATS, and the limits of a run's streams."""

    url: str = "nats://127.0.0.1:4222"
    """One or more NATS URLs, comma separated."""
    run: Name = "default"
    """Run whose streams, registry and fence are meant."""
    user: str | None = None
    """NATS user of this role; its password comes from `password_file`."""
    password_file: Path | None = None
    """File with the password of `user`."""
    ca: Path | None = None
    """Authority of the NATS server's TLS certificate; set it to use TLS."""
    connect_timeout_s: float = Field(30.0, gt=0)
    """How long the first connection may take, seconds."""
    outage_timeout_s: float = Field(900.0, gt=0)
    """How long a call waits for NATS to come back before it fails, seconds; the connection itself tries for ever."""
    ack_wait_s: float = Field(20.0, gt=1)
    """A message not acked or renewed for so long is delivered again, seconds."""
    max_payload_mb: int = Field(8, ge=1, le=64)
    """Largest message, MiB; the plan refuses settings that could make a larger prompt group."""
    max_groups: int = Field(100_000, ge=1)
    """Prompt groups a stream holds at most."""
    duplicate_window_s: float = Field(86_400.0, gt=0)
    """How long the broker remembers message ids, seconds."""
    replicas: int = Field(1, ge=1, le=5)
    """Copies of each stream in a NATS cluster."""
    registry_ttl_s: float = Field(8.0, ge=1)
    """A service instance that was silent for so long is taken for dead, seconds; it beats three times as often."""
