"""`python -m rlctl.generation --config FILE [key=value ...]`: a generation replica."""

from __future__ import annotations

import sys

from rlctl.core import log
from rlctl.core.errors import RlctlError
from rlctl.core.process import arguments, prepare_compute
from rlctl.generation import lifeline
from rlctl.generation.config import GenerationConfig


def main() -> int:
    logger = log.setup("generation")
    try:
        config = arguments(GenerationConfig)
    except RlctlError as error:
        logger.error("%s", error.message)
        return error.exit_code
    prepare_compute(config.threads)
    from rlctl.generation.hosted import GenerationHosted
    from rlctl.rpc.service import run

    return run("generation", config.server, GenerationHosted(config))


if __name__ == "__main__":
    sys.exit(main())
elif __name__ == "__mp_main__":
    # A process that vLLM spawns imports this module first: the earliest moment to tie it to us.
    lifeline.follow()
