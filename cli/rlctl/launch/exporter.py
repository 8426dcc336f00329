"""One rank that turns a checkpoint into a Hugging Face folder.

python -m rlctl.launch.exporter --config FILE
"""

from __future__ import annotations

import sys
from pathlib import Path

from rlctl.core import log
from rlctl.core.config import StrictConfig
from rlctl.core.errors import RlctlError
from rlctl.core.process import arguments, prepare_compute
from rlctl.trainer.config import TrainerConfig


class ExporterConfig(StrictConfig):
    """A checkpoint, and where its policy goes."""

    trainer: TrainerConfig
    """Settings of the trainer that wrote it."""
    checkpoint: Path
    """Folder of the checkpoint."""
    output: Path
    """Folder to write."""


def main() -> int:
    logger = log.setup("export")
    try:
        config = arguments(ExporterConfig)
        prepare_compute(config.trainer.actor.threads)
        export(config)
    except RlctlError as error:
        logger.error("%s", error.message)
        return error.exit_code
    return 0


def export(config: ExporterConfig) -> None:
    """Raises DataLossError when the checkpoint is not what its manifest says."""
    from rlctl.data.template import tokenizer_to_save
    from rlctl.learner.learner import Learner
    from rlctl.models.load import load_causal_lm, load_tokenizer
    from rlctl.models.source import resolve
    from rlctl.trainer.checkpoint import check_manifest

    check_manifest(config.checkpoint)
    folder, actor = resolve(config.trainer.model), config.trainer.actor
    model = load_causal_lm(folder, actor.dtype, actor.attention, trust_remote_code=actor.trust_remote_code)
    learner = Learner(model, actor, total_steps=1)
    learner.load(config.checkpoint / "actor")
    learner.save_hf(config.output, tokenizer_to_save(config.trainer.data.parts, load_tokenizer(folder)))


if __name__ == "__main__":
    sys.exit(main())
