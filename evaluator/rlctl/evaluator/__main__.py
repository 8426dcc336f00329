"""`python -m rlctl.evaluator [--config FILE] [key=value ...]`: the evaluator as a service."""

from __future__ import annotations

import sys

from rlctl.core import log
from rlctl.core.errors import RlctlError
from rlctl.core.process import arguments
from rlctl.evaluator.config import EvaluatorServiceConfig


def main() -> int:
    logger = log.setup("evaluator")
    try:
        config = arguments(EvaluatorServiceConfig)
    except RlctlError as error:
        logger.error("%s", error.message)
        return error.exit_code
    from rlctl.evaluator.servicer import EvaluatorHosted
    from rlctl.rpc.service import run

    return run("evaluator", config.server, EvaluatorHosted(config))


if __name__ == "__main__":
    sys.exit(main())
