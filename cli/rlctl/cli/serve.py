"""`rlctl serve SERVICE`: one service as a process of its own, for compose, Kubernetes, or other programs."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Literal

import typer

Service = Literal["generation", "reward", "reference", "critic", "rollout", "trainer", "evaluator"]


def serve(
    service: Annotated[Service, typer.Argument(help="Which service.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[--config FILE] [KEY=VALUE]...", help="Its settings.")
    ] = None,
) -> None:
    """Serve one model role over gRPC (`rlctl settings --of NAME` lists its settings)."""
    os.execv(sys.executable, [sys.executable, "-m", f"rlctl.{service}", *(arguments or [])])
