"""Messages of `rlctl.v1.weights` to the types of this package, and back."""

from __future__ import annotations

import math

from rlctl.core.errors import InvalidArgumentError
from rlctl.v1 import weights_pb2 as pb
from rlctl.weights.bucket import Announcement, entry_of
from rlctl.weights.group import Invitation

BACKENDS = ("gloo", "nccl")


def to_bucket(announcement: Announcement) -> pb.Bucket:
    return pb.Bucket(
        index=announcement.index,
        entries=[
            pb.WeightEntry(name=entry.name, dtype=entry.dtype_name, shape=entry.shape) for entry in announcement.entries
        ],
        num_bytes=announcement.num_bytes,
        digest=announcement.digest,
    )


def from_bucket(bucket: pb.Bucket) -> Announcement:
    """Raises InvalidArgumentError."""
    if len(bucket.digest) != 16:
        raise InvalidArgumentError(f"a digest has 16 bytes, not {len(bucket.digest)}", field="bucket.digest")
    entries = tuple(entry_of(entry.name, entry.dtype, list(entry.shape)) for entry in bucket.entries)
    return Announcement(bucket.index, entries, bucket.num_bytes, bucket.digest)


def to_join(epoch: int, invitation: Invitation) -> pb.JoinGroupRequest:
    return pb.JoinGroupRequest(
        epoch=epoch,
        group=invitation.group,
        backend=invitation.backend,
        host=invitation.host,
        port=invitation.port,
        world_size=invitation.world_size,
        rank=invitation.rank,
        timeout_s=invitation.timeout_s,
    )


def from_join(request: pb.JoinGroupRequest, workers: int) -> Invitation:
    """The invitation of a replica with so many workers. Raises InvalidArgumentError."""
    if request.backend not in BACKENDS:
        raise InvalidArgumentError(
            f"backend {request.backend!r} is unknown; allowed are {', '.join(BACKENDS)}", field="backend"
        )
    if not request.group:
        raise InvalidArgumentError("the group has no name", field="group")
    if not (request.host and 0 < request.port < 65536):
        raise InvalidArgumentError(f"{request.host!r}:{request.port} is no address of a store", field="host")
    if not 1 <= request.rank <= request.world_size - workers:
        raise InvalidArgumentError(
            f"{workers} workers from rank {request.rank} on do not fit a group of {request.world_size}; "
            "rank 0 is the trainer",
            field="rank",
        )
    if not (math.isfinite(request.timeout_s) and request.timeout_s > 0):
        raise InvalidArgumentError("timeout_s must be positive", field="timeout_s")
    return Invitation(
        request.group,
        request.backend,
        request.host,
        request.port,
        request.world_size,
        request.rank,
        request.timeout_s,
    )
