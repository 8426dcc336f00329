"""`python -m rlctl.reward --config FILE [key=value ...]`: a reward replica."""

from __future__ import annotations

import sys

from rlctl.core import log
from rlctl.core.errors import RlctlError
from rlctl.core.process import arguments, prepare_compute
from rlctl.reward.config import RewardConfig


def main() -> int:
    logger = log.setup("reward")
    try:
        config = arguments(RewardConfig)
    except RlctlError as error:
        logger.error("%s", error.message)
        return error.exit_code
    prepare_compute(config.threads)
    from rlctl.reward.servicer import RewardHosted
    from rlctl.rpc.service import run

    return run("reward", config.server, RewardHosted(config))


if __name__ == "__main__":
    sys.exit(main())
