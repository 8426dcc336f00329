"""The run's own NATS server as a supervised process: ends when the server does, and ends it when told to.

python -m rlctl.launch.broker --config FILE
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pydantic import Field

from rlctl.bus.server import NatsServer
from rlctl.core import log
from rlctl.core.config import Name, StrictConfig, load
from rlctl.core.errors import RlctlError
from rlctl.core.shutdown import Shutdown

POLL_S = 0.1


class BrokerConfig(StrictConfig):
    """A NATS server on loopback."""

    store_dir: Path
    """Folder of its streams."""
    port: int = Field(ge=1, le=65535)
    """Port; the same after every restart, so that everyone finds it again."""
    log_path: Path
    """File it logs to."""
    max_payload_mb: int = Field(8, ge=1, le=64)
    """Largest message, MiB."""
    run: Name = "run"
    """The run it serves."""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path, required=True)
    logger = log.setup("nats")
    shutdown = Shutdown().install()
    try:
        config = load(BrokerConfig, parser.parse_args().config)
        server = NatsServer(
            config.store_dir, config.port, config.log_path, max_payload_mb=config.max_payload_mb, run=config.run
        )
        logger.info("serving on %s", server.start())
    except RlctlError as error:
        logger.error("%s", error)
        return error.exit_code
    assert server.process is not None
    while not shutdown.requested.wait(POLL_S):
        if server.process.poll() is not None and not shutdown.requested.is_set():
            logger.error("nats-server ended with code %d", server.process.returncode)
            return 1
    server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
