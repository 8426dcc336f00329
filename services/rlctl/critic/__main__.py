"""`python -m rlctl.critic --config FILE [key=value ...]`: one rank of the critic; rank 0 serves."""

from __future__ import annotations

import logging
import os
import signal
import sys

from rlctl.core import log
from rlctl.core.errors import RlctlError
from rlctl.core.process import arguments, prepare_compute
from rlctl.critic.config import CriticConfig


def main() -> int:
    rank = int(os.environ.get("RANK", "0"))
    logger = log.setup("critic" if rank == 0 else f"critic.{rank}")
    try:
        config = arguments(CriticConfig)
    except RlctlError as error:
        logger.error("%s", error.message)
        return error.exit_code
    prepare_compute(config.learner.threads)
    if rank:
        return _follow(config, logger)
    from rlctl.critic.servicer import CriticHosted
    from rlctl.rpc.service import run

    return run("critic", config.server, CriticHosted(config))


def _follow(config: CriticConfig, logger: logging.Logger) -> int:
    """Works for rank 0 until it closes; a signal is rank 0's to act on."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    from rlctl.critic.engine import CriticEngine

    try:
        CriticEngine(config).follow()
    except RlctlError as error:
        logger.error("%s", error.message)
        return error.exit_code
    except RuntimeError:
        logger.critical("rank 0 is gone, or this rank failed; this process ends", exc_info=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
