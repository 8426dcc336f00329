"""JetStream streams, as we want them."""

from __future__ import annotations

from typing import Any

from rlctl.bus.connection import Connection
from rlctl.bus.faults import ApiError
from rlctl.core.errors import ConfigError

_STREAM_NAME_IN_USE = 10058


async def put_stream(connection: Connection, config: dict[str, Any]) -> None:
    """Creates a stream, or changes the one there is. Raises ConfigError where it cannot be changed so."""
    name = config["name"]
    try:
        await connection.api(f"STREAM.CREATE.{name}", config)
    except ApiError as error:
        if error.err_code != _STREAM_NAME_IN_USE:
            raise ConfigError(
                f"NATS at {connection.url} did not create stream {name!r}: {error.description}"
            ) from error
        try:
            await connection.api(f"STREAM.UPDATE.{name}", config)
        except ApiError as update:
            raise ConfigError(
                f"stream {name!r} at {connection.url} exists with other settings and cannot be changed: "
                f"{update.description}"
            ) from update
