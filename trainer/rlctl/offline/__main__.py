"""`python -m rlctl.offline --config FILE [run.key=value ...]`: one rank of an offline trainer."""

from __future__ import annotations

import os
import signal
import sys

from rlctl.core import log
from rlctl.core.errors import InvalidArgumentError, NotFoundError, RlctlError
from rlctl.core.process import arguments, prepare_compute
from rlctl.core.shutdown import Shutdown
from rlctl.offline.config import ProcessConfig

FAILED, WRONG_SETTINGS = 1, 2


def main() -> int:
    logger = log.setup("trainer")
    try:
        config = arguments(ProcessConfig).run
        prepare_compute(config.learner.threads)
        from rlctl.offline.loop import Reached, progress_line
        from rlctl.offline.run import train

        shutdown = Shutdown()
        if int(os.environ.get("RANK", "0")) == 0:
            shutdown.install()
        else:
            # Rank 0 says when it is over; a signal to the whole group must not tear a collective operation.
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)

        def report(reached: Reached) -> None:
            logger.info("%s", progress_line(reached, 0, 0.0))

        end = train(config, report, shutdown.requested.is_set)
        if end.stopped:
            logger.info("stopped and committed after step %d: the same command goes on from there", end.step)
    except RlctlError as error:
        logger.error("%s", error.message)
        return WRONG_SETTINGS if isinstance(error, InvalidArgumentError | NotFoundError) else FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
