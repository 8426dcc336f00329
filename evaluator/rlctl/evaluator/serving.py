"""A generation service of our own, for `rlctl eval --model X` without an address."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager
from pathlib import Path

from rlctl.rpc.own import OwnService, own_service


def generation_service(
    model: str, log_path: Path, threads: int, secrets: Collection[str] = ()
) -> AbstractContextManager[OwnService]:
    """Serves a model for the time of an evaluation. secrets: environment variables that it does not get."""
    return own_service("generation", {"model": model, "threads": threads}, log_path, secrets=secrets)
