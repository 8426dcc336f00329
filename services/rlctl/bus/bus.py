"""The rollout bus: the prompts and the rollouts of a run as two JetStream work queues.

    trainer ── publish_prompt ──► prompts ── prompt_consumer ──► workers
    trainer ◄── rollout_consumer ── rollouts ◄── publish_rollout ── workers

Who holds the promise of "exactly once" where:
- A message is stored when its publish call returns, and once: the broker knows its id for `duplicate_window_s`.
- A worker settles a prompt after its rollout is stored; until then the prompt comes again.
- Acknowledging a rollout first removes its prompt, should that still be there (its worker died between the two), so
  that a prompt whose rollout was taken is never answered again. Hence `is_open` tells a worker whether to generate.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rlctl.bus.config import BusConfig
from rlctl.bus.connection import Connection
from rlctl.bus.consumer import Consumer
from rlctl.bus.faults import ApiError, NotServedError, refused
from rlctl.bus.ids import Queue, group_key, group_subject, stream_name, stream_subjects
from rlctl.bus.lookup import Lookup
from rlctl.bus.streams import put_stream
from rlctl.core.errors import (
    DataLossError,
    FencedError,
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
)
from rlctl.v1.rollout_pb2 import GroupId, PromptTask, RolloutGroup

if TYPE_CHECKING:
    import asyncio

log = logging.getLogger("rlctl.bus")

#: Room for subject and headers beside the payload.
HEADROOM = 64 * 1024

QUEUES: tuple[Queue, ...] = ("prompts", "rollouts")

_CONSUMER_NOT_UNIQUE = (10100, 10099)
_FULL = (10077, 10122)
_NO_DISK = (10047, 10023)
_WORKERS = "workers"
_TRAINER = "trainer-"


class Bus:
    """A process's part in a run's queues. Made by `connect`; belongs to the event loop that made it.

    Give it an event loop that no model blocks: messages in work are renewed there.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.config = connection.config
        self._consumers: list[Consumer[Any]] = []
        self._lookups = {queue: self._lookup(queue) for queue in QUEUES}

    def _lookup(self, queue: Queue) -> Lookup:
        run = self.config.run
        return Lookup(self.connection, stream_name(run, queue), stream_subjects(run, queue))

    @classmethod
    async def connect(cls, config: BusConfig, name: str) -> Bus:
        """`name` is shown in NATS monitoring. Raises UnavailableError, AuthenticationError, ConfigError."""
        return cls(await Connection.open(config, name))

    @property
    def closed(self) -> asyncio.Event:
        """Set when the connection is closed for good; a process that sees it without having asked for it must end."""
        return self.connection.closed

    async def create_streams(self) -> None:
        """Creates the run's two streams, or brings them to the configured limits. Raises ConfigError."""
        for queue in QUEUES:
            await put_stream(self.connection, self._stream_config(queue))

    def _stream_config(self, queue: Queue) -> dict[str, Any]:
        return {
            "name": stream_name(self.config.run, queue),
            "subjects": [stream_subjects(self.config.run, queue)],
            "retention": "workqueue",
            "storage": "file",
            "discard": "new",
            "max_msgs": self.config.max_groups,
            "max_msg_size": self.max_message_bytes + HEADROOM,
            "duplicate_window": int(self.config.duplicate_window_s * 1e9),
            "num_replicas": self.config.replicas,
        }

    @property
    def max_message_bytes(self) -> int:
        """Largest prompt group, bytes."""
        return self.config.max_payload_mb * 1024 * 1024

    async def publish_prompt(self, task: PromptTask) -> bool:
        """Stores a task; False when the broker has had this id already (and stored nothing).

        Raises ResourceExhaustedError when it is too large or the stream is full, UnavailableError.
        """
        return await self._publish("prompts", task.id, task.SerializeToString())

    async def publish_rollout(self, group: RolloutGroup) -> bool:
        """Stores a group; False when the broker has had this id already (and stored nothing).

        Sends the same bytes again until the broker says that they are stored. Raises ResourceExhaustedError when it
        is too large or the stream is full, UnavailableError.
        """
        return await self._publish("rollouts", group.task.id, group.SerializeToString())

    async def _publish(self, queue: Queue, id: GroupId, data: bytes) -> bool:
        if id.run != self.config.run:
            raise InvalidArgumentError(f"group {group_key(id)} is not of run {self.config.run!r}", field="id.run")
        limit = min(self.max_message_bytes, self.connection.max_payload - 1024)
        if len(data) > limit:
            raise ResourceExhaustedError(
                f"group {group_key(id)} takes {len(data):,} bytes and a message may have {limit:,}: lower the samples "
                "a prompt or their length, or raise bus.max_payload_mb (and max_payload of the NATS server)",
                reason="MESSAGE_TOO_LARGE",
                limit=limit,
                size=len(data),
            )
        subject = group_subject(id, queue)
        headers = {"Nats-Msg-Id": group_key(id)}

        async def attempt() -> dict[str, Any]:
            reply = await self.connection.request(subject, data, headers=headers)
            return json.loads(reply.data)  # type: ignore[no-any-return]

        try:
            ack = await self.connection.persist(f"store group {group_key(id)}", attempt)
        except NotServedError as error:
            raise self._no_stream(queue) from error
        if "error" in ack:
            raise self._publish_error(ApiError(ack["error"]), queue)
        return not ack.get("duplicate", False)

    def _no_stream(self, queue: Queue) -> NotFoundError:
        return NotFoundError(
            f"NATS at {self.connection.url} has no stream {stream_name(self.config.run, queue)!r}: start the run's "
            "trainer, which creates it, or see whether bus.run and bus.url are meant"
        )

    def _publish_error(self, error: ApiError, queue: Queue) -> Exception:
        if error.err_code in _FULL:
            return ResourceExhaustedError(
                f"the {queue} stream of run {self.config.run!r} is full ({self.config.max_groups:,} groups): "
                "see why they are not taken, or raise bus.max_groups",
                reason="QUEUE_FULL",
                limit=self.config.max_groups,
            )
        if error.err_code in _NO_DISK:
            return ResourceExhaustedError(
                f"NATS at {self.connection.url} has no room left for the {queue} stream: free disk space in its store",
                reason="NO_DISK",
            )
        return refused(error, f"store a message in the {queue} stream")

    async def prompt_exists(self, id: GroupId) -> bool:
        """Whether a task waits, or is in work, unacknowledged."""
        return await self._exists("prompts", id)

    async def rollout_exists(self, id: GroupId) -> bool:
        """Whether a group is stored and was not acknowledged yet."""
        return await self._exists("rollouts", id)

    async def is_open(self, id: GroupId) -> bool:
        """Whether a task that was fetched still wants an answer.

        Asks in this order: a taken rollout's prompt was removed before the rollout was acknowledged.
        """
        return not await self.rollout_exists(id) and await self.prompt_exists(id)

    async def _exists(self, queue: Queue, id: GroupId) -> bool:
        try:
            return await self._lookups[queue].exists(group_subject(id, queue))
        except ApiError as error:
            if error.code == 404:
                raise self._no_stream(queue) from error
            raise refused(error, f"look for {group_key(id)}") from error

    async def prompt_consumer(self) -> Consumer[PromptTask]:
        """The workers' consumer: all of them share it, each prompt goes to one of them."""
        stream = stream_name(self.config.run, "prompts")

        async def ensure() -> None:
            await self._create_consumer(stream, _WORKERS, max_ack_pending=-1, queue="prompts")

        consumer = Consumer(
            self.connection,
            stream,
            _WORKERS,
            decode=_decoder(PromptTask.FromString, lambda task: task.id, "prompts"),
            ensure=ensure,
            ack_wait_s=self.config.ack_wait_s,
        )
        return await self._start(consumer)

    async def rollout_consumer(self, epoch: int, max_ack_pending: int) -> Consumer[RolloutGroup]:
        """The trainer's consumer, which holds at most `max_ack_pending` groups.

        It takes over from trainers of lower epochs at once, with everything they had not acknowledged. Raises
        FencedError when one of a higher epoch is there, also later from `fetch`.
        """
        stream = stream_name(self.config.run, "rollouts")
        name = f"{_TRAINER}{epoch}"

        async def ensure() -> None:
            await self._take_over(stream, epoch)
            await self._create_consumer(stream, name, max_ack_pending=max_ack_pending, queue="rollouts")

        consumer = Consumer(
            self.connection,
            stream,
            name,
            decode=_decoder(RolloutGroup.FromString, lambda group: group.task.id, "rollouts"),
            ensure=ensure,
            ack_wait_s=self.config.ack_wait_s,
            before_ack=self._remove_prompt,
        )
        return await self._start(consumer)

    async def _start(self, consumer: Consumer[Any]) -> Consumer[Any]:
        await consumer.start()
        self._consumers.append(consumer)
        return consumer

    async def _remove_prompt(self, group: RolloutGroup) -> None:
        if await self.prompt_exists(group.task.id):
            await self.connection.api(
                f"STREAM.PURGE.{stream_name(self.config.run, 'prompts')}",
                {"filter": group_subject(group.task.id, "prompts")},
            )

    async def _create_consumer(self, stream: str, name: str, *, max_ack_pending: int, queue: Queue) -> None:
        config = {
            "name": name,
            "durable_name": name,
            "ack_policy": "explicit",
            "deliver_policy": "all",
            "ack_wait": int(self.config.ack_wait_s * 1e9),
            "max_deliver": -1,
            "max_ack_pending": max_ack_pending,
            "max_waiting": 4096,
        }
        try:
            await self.connection.api(f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": config})
        except ApiError as error:
            if error.code == 404:
                raise self._no_stream(queue) from error
            if error.err_code in _CONSUMER_NOT_UNIQUE:
                raise FencedError(
                    f"another trainer took the rollouts of run {self.config.run!r} at this moment"
                ) from error
            raise refused(error, f"create consumer {name!r}") from error

    async def _take_over(self, stream: str, epoch: int) -> None:
        """Deletes the consumers of lower epochs."""
        try:
            names = (await self.connection.api(f"CONSUMER.NAMES.{stream}", {"offset": 0})).get("consumers") or []
        except ApiError as error:
            raise self._no_stream("rollouts") from error
        for name in names:
            other = int(name.removeprefix(_TRAINER)) if name.startswith(_TRAINER) else -1
            if other > epoch:
                raise FencedError(
                    f"run {self.config.run!r} belongs to a newer trainer (epoch {other}; this one has {epoch}): "
                    "this process must end"
                )
            if other < epoch:
                try:
                    await self.connection.api(f"CONSUMER.DELETE.{stream}.{name}")
                except ApiError as error:
                    if error.code != 404:
                        raise refused(error, f"delete consumer {name!r}") from error
                log.info("took the rollouts over from consumer %s", name)

    async def close(self) -> None:
        """Gives back what was not acknowledged and ends the connection."""
        for consumer in self._consumers:
            await consumer.close()
        await self.connection.close()


def _decoder(
    parse: Callable[[bytes], Any], id_of: Callable[[Any], GroupId], queue: Queue
) -> Callable[[bytes, str], Any]:
    """Parses, and checks that the message is the one its subject says."""

    def decode(data: bytes, subject: str) -> Any:
        message = parse(data)
        if group_subject(id_of(message), queue) != subject:
            raise DataLossError(f"group {group_key(id_of(message))} does not belong to subject {subject}")
        return message

    return decode
