"""`python -m rlctl.reference --config FILE [key=value ...]`: a reference replica."""

from __future__ import annotations

import sys

from rlctl.core import log
from rlctl.core.errors import RlctlError
from rlctl.core.process import arguments, prepare_compute
from rlctl.reference.config import ReferenceConfig


def main() -> int:
    logger = log.setup("reference")
    try:
        config = arguments(ReferenceConfig)
    except RlctlError as error:
        logger.error("%s", error.message)
        return error.exit_code
    prepare_compute(config.threads)
    from rlctl.reference.servicer import ReferenceHosted
    from rlctl.rpc.service import run

    return run("reference", config.server, ReferenceHosted(config))


if __name__ == "__main__":
    sys.exit(main())
