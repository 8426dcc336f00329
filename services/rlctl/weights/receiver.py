"""The receiving half of a sync, in the process that holds the weights; it knows neither gRPC nor an engine."""

from __future__ import annotations

import torch

from rlctl.core.errors import FailedPreconditionError
from rlctl.weights.bucket import Announcement, check, unpack, verify
from rlctl.weights.group import Group, Invitation, join


class Receiver:
    """Joins groups and receives buckets into a staging buffer: on `device` with NCCL, in memory with gloo."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._group: Group | None = None
        self._staging = torch.empty(0, dtype=torch.uint8)

    def join(self, invitation: Invitation) -> None:
        """Joins a group and leaves the one before. Raises UnavailableError, DeadlineError."""
        self._group = None
        wanted = self._device if invitation.backend == "nccl" else torch.device("cpu")
        if self._staging.device != wanted:
            self._staging = torch.empty(0, dtype=torch.uint8, device=wanted)
        self._group = join(invitation)

    def receive(self, announcement: Announcement) -> list[tuple[str, torch.Tensor]]:
        """The tensors of the next bucket, checked; they are overwritten by the next call.

        Raises UnavailableError when the broadcast breaks (the group is then of no more use), DataLossError when
        the bytes are not what was announced, InvalidArgumentError when the announcement contradicts itself.
        """
        if self._group is None:
            raise FailedPreconditionError("no group was joined", reason="UNKNOWN_GROUP")
        check(announcement)
        data = self._room(announcement.num_bytes)
        self._group.broadcast(data)
        verify(announcement, data)
        return unpack(announcement, data)

    def leave(self) -> None:
        """Leaves the group and frees the buffer."""
        self._group = None
        self._staging = torch.empty(0, dtype=torch.uint8)

    def _room(self, num_bytes: int) -> torch.Tensor:
        if self._staging.numel() < num_bytes:
            self._staging = torch.empty(num_bytes, dtype=torch.uint8, device=self._staging.device)
        return self._staging[:num_bytes]
