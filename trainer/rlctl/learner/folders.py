"""A trained model as a folder: the whole model, and its adapters for peft."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlctl.learner import distributed
from rlctl.learner.export import checkpoint_name, gathered
from rlctl.models.adapters import save_adapter
from rlctl.models.save import save_model
from rlctl.models.value_head import ValueModel

#: Folder of the adapters below the folder of the merged model.
ADAPTER = "adapter"
#: Folder of the averaged model.
EMA = "ema"


def write(
    folder: Path,
    model: PreTrainedModel | ValueModel,
    weights: Iterator[tuple[str, Tensor]],
    tokenizer: PreTrainedTokenizerBase | None,
) -> None:
    """The Hugging Face folder, written by rank 0; every rank consumes `weights`."""
    if distributed.rank() == 0:
        backbone = model.backbone if isinstance(model, ValueModel) else model
        architecture = None
        if isinstance(model, ValueModel):
            architecture = type(backbone).__name__.removesuffix("Model") + "ForSequenceClassification"
        save_model(
            folder,
            backbone.config,
            weights,
            tokenizer,
            generation_config=getattr(backbone, "generation_config", None),
            architecture=architecture,
        )
    else:
        for _ in weights:
            pass


def write_adapter(folder: Path, model: PreTrainedModel | ValueModel, partitioned: bool) -> None:
    """The adapters (and a value model's head) alone, written by rank 0; every rank calls it."""
    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    with gathered([parameter for _, parameter in trained], partitioned):
        if distributed.rank() == 0:
            value = isinstance(model, ValueModel)
            backbone = model.backbone if isinstance(model, ValueModel) else model
            settings: Any = backbone.peft_config["default"]
            if settings.target_modules == "all-linear":
                adapted = {name.split(".lora_A.")[0].rpartition(".")[2] for name, _ in trained if ".lora_A." in name}
                settings.target_modules = adapted
            tensors = [(checkpoint_name(model, name), parameter) for name, parameter in trained]
            save_adapter(folder, settings, backbone.config.name_or_path, tensors, value)
