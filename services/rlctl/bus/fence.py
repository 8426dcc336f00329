"""The fencing epoch: which trainer a run belongs to.

A number in a file-backed KV bucket, raised by compare-and-set, so that of two trainers exactly one has the highest;
whoever is told an epoch refuses a lower one afterwards.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from rlctl.bus.bus import Bus
from rlctl.bus.faults import ApiError, refused
from rlctl.bus.ids import bucket_name
from rlctl.bus.streams import put_stream
from rlctl.core.errors import FencedError

_WRONG_LAST_SEQUENCE = (10071, 10164)


class Fence:
    """The fence of the bus's run."""

    def __init__(self, bus: Bus) -> None:
        self._connection = bus.connection
        self._run = bus.config.run
        bucket = bucket_name(self._run, "fence")
        self._stream = f"KV_{bucket}"
        self._subject = f"$KV.{bucket}.epoch"
        self._replicas = bus.config.replicas

    async def acquire(self, above: int = 0) -> int:
        """A new epoch, higher than every one before and than `above` (the epoch in the run's checkpoint, so that a
        lost NATS store cannot bring an old number back)."""
        await self._create()
        while True:
            epoch, revision = await self._read()
            epoch = max(epoch, above) + 1
            if await self._swap(epoch, revision):
                return epoch

    async def check(self, epoch: int) -> None:
        """Raises FencedError unless `epoch` is the run's newest."""
        current, _ = await self._read()
        if current > epoch:
            raise FencedError(
                f"run {self._run!r} belongs to a newer trainer (epoch {current}; this one has {epoch}): "
                "this process must end"
            )
        if current < epoch:
            raise FencedError(
                f"the fence of run {self._run!r} says epoch {current} and this trainer has {epoch}: the NATS store was "
                "lost or exchanged; start the trainer again"
            )

    async def _create(self) -> None:
        config = {
            "name": self._stream,
            "subjects": [f"{self._subject.removesuffix('epoch')}>"],
            "storage": "file",
            "discard": "new",
            "max_msgs_per_subject": 1,
            "allow_rollup_hdrs": True,
            "deny_delete": True,
            "allow_direct": False,
            "num_replicas": self._replicas,
        }
        await put_stream(self._connection, config)

    async def _read(self) -> tuple[int, int]:
        """(epoch, revision); (0, 0) before the first trainer. Read from the leader."""
        try:
            reply = await self._connection.api(f"STREAM.MSG.GET.{self._stream}", {"last_by_subj": self._subject})
        except ApiError as error:
            if error.code == 404:
                return 0, 0
            raise refused(error, "read the fence") from error
        message = reply["message"]
        return int(base64.b64decode(message["data"])), int(message["seq"])

    async def _swap(self, epoch: int, revision: int) -> bool:
        headers = {"Nats-Expected-Last-Subject-Sequence": str(revision)}

        async def attempt() -> dict[str, Any]:
            reply = await self._connection.request(self._subject, str(epoch).encode(), headers=headers)
            return json.loads(reply.data)  # type: ignore[no-any-return]

        ack = await self._connection.persist("raise the fence", attempt)
        if "error" not in ack:
            return True
        error = ApiError(ack["error"])
        if error.err_code in _WRONG_LAST_SEQUENCE:
            # Another trainer was faster, or our own first try was stored before its answer was lost.
            return False
        raise refused(error, "raise the fence")
