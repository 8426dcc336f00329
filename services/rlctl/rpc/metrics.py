"""Prometheus metrics of calls, and the page that shows all metrics of a process."""

from __future__ import annotations

from rlctl.rpc.config import TLSConfig


class MetricsPage:
    """`/metrics` of this process, served from a thread."""

    address: str

    def close(self) -> None:
        raise NotImplementedError


def serve_metrics(listen: str, tls: TLSConfig | None = None, token: str | None = None) -> MetricsPage:
    """Serves every metric of prometheus_client's default registry at `listen` (port 0: a free one)."""
    raise NotImplementedError
