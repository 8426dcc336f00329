"""Settings of serving and calling."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from rlctl.bus.config import BusConfig
from rlctl.core.config import StrictConfig


class TLSConfig(StrictConfig):
    """PEM files of one side of a TLS connection."""

    cert: Path | None = None
    """Certificate chain shown to the other side (needed by a server; by a client only for mutual TLS)."""
    key: Path | None = None
    """Private key of `cert`."""
    ca: Path | None = None
    """Authority that the other side's certificate must come from; on a server this demands client certificates."""
    server_name: str | None = None
    """Name expected in the server's certificate when it differs from the address."""


class ServerConfig(StrictConfig):
    """How a service listens."""

    listen: str = "127.0.0.1:0"
    """`host:port` of the gRPC server; port 0 takes a free one. Outside loopback TLS is a must."""
    advertise: str | None = None
    """`host:port` told to clients through the registry, when it differs from where it listens."""
    metrics_listen: str | None = "127.0.0.1:0"
    """`host:port` of the Prometheus page; `none` for none."""
    tls: TLSConfig | None = None
    token_file: Path | None = None
    """File with the bearer token that callers must send; also read from RLCTL_TOKEN."""
    max_message_mb: int = Field(64, ge=1, le=1024)
    """Largest message either way, MiB."""
    max_concurrency: int = Field(512, ge=1)
    """Calls worked on at once; more are refused with RESOURCE_EXHAUSTED."""
    call_timeout_s: float = Field(3600.0, gt=0)
    """Deadline of a call that came without one, seconds."""
    drain_s: float = Field(10.0, ge=0)
    """Seconds that calls in flight get after SIGTERM."""
    registry: BusConfig | None = None
    """Where to announce the service; `none` leaves it to plain addresses."""


class ChannelConfig(StrictConfig):
    """How a client reaches the replicas of a service."""

    addresses: list[str] = Field([])
    """`host:port` of each replica; empty: found in the registry."""
    tls: TLSConfig | None = None
    token_file: Path | None = None
    """File with the bearer token; also read from RLCTL_TOKEN."""
    timeout_s: float = Field(120.0, gt=0)
    """Deadline of a call unless the call says otherwise, seconds."""
    ready_timeout_s: float = Field(300.0, gt=0)
    """How long to wait for a replica that serves, seconds."""
    max_message_mb: int = Field(64, ge=1, le=1024)
    """Largest message either way, MiB."""
