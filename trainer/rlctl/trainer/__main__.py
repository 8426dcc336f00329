"""`python -m rlctl.trainer --config FILE [key=value ...]`: one rank of the trainer."""

from __future__ import annotations

import sys

from rlctl.core import log
from rlctl.core.errors import RlctlError
from rlctl.core.process import arguments, prepare_compute
from rlctl.trainer.config import TrainerConfig


def main() -> int:
    logger = log.setup("trainer")
    try:
        config = arguments(TrainerConfig)
        prepare_compute(config.actor.threads)
        from rlctl.trainer.process import run_rank

        run_rank(config)
    except RlctlError as error:
        logger.error("%s", error.message)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
