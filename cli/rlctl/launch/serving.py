"""A generation service for the length of a command: to talk to a model without a run."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlctl.clients.blocking import GenerationClient
from rlctl.core.errors import DeadlineError, UnavailableError
from rlctl.launch.launcher import local_gpus
from rlctl.launch.process_actor import GUARD
from rlctl.rpc.config import ChannelConfig

POLL_S = 1.0
TAIL_LINES = 5


@contextmanager
def serve_model(model: Path, timeout_s: float = 300.0) -> Iterator[ChannelConfig]:
    """Serves a model's folder on loopback; gives how to reach it. All of it ends with the context, or with us.

    Raises UnavailableError with the end of its log when it does not come up.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    # For one caller on a CPU, vLLM's start takes longer than it saves.
    engine = "auto" if local_gpus() else "transformers"
    settings = [f"model={model}", f"dtype={_dtype(model)}", f"engine={engine}", f"server.listen={address}"]
    command = [sys.executable, "-m", "rlctl.generation", *settings, "server.metrics_listen=none"]
    with tempfile.TemporaryFile() as log:
        guard = subprocess.Popen(
            [sys.executable, "-I", "-S", GUARD, *command],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=log, start_new_session=True,
        )  # fmt: skip
        assert guard.stdin is not None
        try:
            channel = ChannelConfig(addresses=[address])
            _wait(channel, guard, timeout_s)
            yield channel
        except UnavailableError as error:
            log.seek(0)
            lines = log.read().decode("utf-8", "replace").strip().splitlines()[-TAIL_LINES:]
            raise UnavailableError("\n  ".join([error.message, *lines])) from None
        finally:
            guard.stdin.close()
            guard.wait()


def has_chat_template(model: Path) -> bool:
    if (model / "chat_template.jinja").is_file():
        return True
    try:
        return bool(json.loads((model / "tokenizer_config.json").read_text(encoding="utf-8")).get("chat_template"))
    except (OSError, ValueError):
        return False


def _wait(channel: ChannelConfig, guard: subprocess.Popen[bytes], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    with GenerationClient(channel) as client:
        while True:
            try:
                client.ready(timeout_s=POLL_S)
            except DeadlineError as error:
                if guard.poll() is not None:
                    raise UnavailableError("the generation service ended before it served:") from error
                if time.monotonic() > deadline:
                    raise UnavailableError(f"the generation service did not serve within {timeout_s:.0f} s:") from error
            else:
                return


def _dtype(model: Path) -> str:
    """The type the weights were saved in, as far as the service has it."""
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    return "float32" if (config.get("dtype") or config.get("torch_dtype")) == "float32" else "bfloat16"
