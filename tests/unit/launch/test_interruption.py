"""Signals of a launch."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import ray
from ray._private import utils

from rlctl.launch.host import Host
from rlctl.launch.recipe import ClusterSection


def test_sigterm_while_ray_starts_is_an_interrupt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's own handler would end the launch with status 15, and a chain would not say how to go on."""

    def init(**_: Any) -> None:
        utils.set_sigterm_handler(lambda number, _frame: sys.exit(number))
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(ray, "init", init)
    before = signal.getsignal(signal.SIGTERM)
    host = Host(tmp_path, ClusterSection(), "none")
    try:
        with patch.dict(os.environ), pytest.raises(KeyboardInterrupt):
            host.open()
    finally:
        signal.signal(signal.SIGTERM, before)
        host.close()
