"""A generation service for the length of a command: to talk to a model without a run."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlctl.core.errors import FailedPreconditionError, NotFoundError
from rlctl.launch.launcher import local_gpus
from rlctl.rpc.own import OwnService, own_service


@contextmanager
def serve_model(model: Path, timeout_s: float = 300.0) -> Iterator[OwnService]:
    """Serves a model's folder on loopback. All of it ends with the context, or with us.

    Raises UnavailableError with the end of its log when it does not come up, NotFoundError for a folder without a
    model, FailedPreconditionError for a reward model.
    """
    if not (model / "config.json").is_file():
        raise NotFoundError(f"{model} is no Hugging Face model (it has no config.json): correct the path")
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    if any(name.endswith("ForSequenceClassification") for name in config.get("architectures") or ()):
        raise FailedPreconditionError(
            f"{model} is a reward model, which scores and writes nothing: see `rlctl serve reward`"
        )
    # For one caller on a CPU, vLLM's start takes longer than it saves.
    engine = "auto" if local_gpus() else "transformers"
    settings = {"model": str(model), "dtype": _dtype(config), "engine": engine}
    with (
        tempfile.TemporaryDirectory(prefix="rlctl-") as folder,
        own_service("generation", settings, Path(folder) / "generation.log") as service,
    ):
        service.wait(timeout_s)
        yield service


def has_chat_template(model: Path) -> bool:
    if (model / "chat_template.jinja").is_file():
        return True
    try:
        return bool(json.loads((model / "tokenizer_config.json").read_text(encoding="utf-8")).get("chat_template"))
    except (OSError, ValueError):
        return False


def _dtype(config: dict[str, Any]) -> str:
    """The type the weights were saved in, as far as the service has it."""
    return "float32" if (config.get("dtype") or config.get("torch_dtype")) == "float32" else "bfloat16"
