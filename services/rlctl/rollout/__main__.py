"""`python -m rlctl.rollout [--config FILE] [key=value ...]`: a rollout worker."""

from __future__ import annotations

import sys

from rlctl.core import log
from rlctl.core.errors import RlctlError
from rlctl.core.process import arguments
from rlctl.rollout.config import RolloutConfig


def main() -> int:
    logger = log.setup("rollout")
    try:
        config = arguments(RolloutConfig)
        from rlctl.rollout.process import HostedWorker, server_config
        from rlctl.rpc.service import run

        return run("rollout", server_config(config), HostedWorker(config))
    except RlctlError as error:
        logger.error("%s", error.message)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
