"""Names of prompt groups, streams, subjects and buckets.

A group is `run/epoch/prompt/attempt` to people, the journal and `Nats-Msg-Id`, and
`rlctl.<run>.<prompts|rollouts>.<epoch>.<prompt>.<attempt>` as a subject. Run names may hold dots, which separate
the parts of a subject and are not allowed in stream names: `_` becomes `__` and `.` becomes `_d`.
"""

from __future__ import annotations

import re
from typing import Literal

from rlctl.core.errors import InvalidArgumentError
from rlctl.v1.rollout_pb2 import GroupId

Queue = Literal["prompts", "rollouts"]

_RUN = re.compile(r"[A-Za-z0-9_\-][A-Za-z0-9_.\-]{0,63}")


def group_key(id: GroupId) -> str:
    """`run/epoch/prompt/attempt`."""
    return f"{id.run}/{id.epoch}/{id.prompt}/{id.attempt}"


def parse_group_key(key: str) -> GroupId:
    """Inverse of `group_key`. Raises InvalidArgumentError."""
    run, *numbers = key.split("/")
    if not _RUN.fullmatch(run) or len(numbers) != 3 or not all(re.fullmatch(r"[0-9]+", n) for n in numbers):
        raise InvalidArgumentError(f"{key!r} is no group id; it reads run/epoch/prompt/attempt", field="id")
    return GroupId(run=run, epoch=int(numbers[0]), prompt=int(numbers[1]), attempt=int(numbers[2]))


def encode_name(name: str) -> str:
    """A name as one part of a subject, key or stream name."""
    if not _RUN.fullmatch(name):
        raise InvalidArgumentError(
            f"{name!r} cannot be used as a name: take 1 to 64 letters, digits, '_', '-' or '.', no '.' in front",
            field="run",
        )
    return name.replace("_", "__").replace(".", "_d")


def decode_name(encoded: str) -> str:
    """Inverse of `encode_name`."""
    return re.sub(r"__|_d", lambda match: "_" if match[0] == "__" else ".", encoded)


def stream_name(run: str, queue: Queue) -> str:
    return f"rlctl-{encode_name(run)}-{queue}"


def bucket_name(run: str, bucket: Literal["registry", "fence"]) -> str:
    return f"rlctl-{encode_name(run)}-{bucket}"


def stream_subjects(run: str, queue: Queue) -> str:
    """All subjects of a run's stream."""
    return f"rlctl.{encode_name(run)}.{queue}.>"


def group_subject(id: GroupId, queue: Queue) -> str:
    return f"rlctl.{encode_name(id.run)}.{queue}.{id.epoch}.{id.prompt}.{id.attempt}"
