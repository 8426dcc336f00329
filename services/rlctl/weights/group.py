"""Process groups of a sync: the trainer is rank 0, the workers of the replicas follow. They stand beside whatever
default group a process has.

Members meet at the trainer's store before they connect, so that one who does not come is found by name and the others
are sent home at once, instead of all waiting inside gloo or NCCL:

    member: set "here/<rank>", wait for "go"     trainer: wait for every "here" or for a failure, then set "go"

The store's traffic, gloo's and NCCL's are neither authenticated nor encrypted: keep them on a private network.
"""

from __future__ import annotations

import datetime
import socket
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed

from rlctl.core.errors import ConfigError, DeadlineError, UnavailableError

# torch exports its stores and groups without saying so.
dist: Any = torch.distributed

GO = "go"
DEPART = b"1"
DISPERSE = b"0"


@dataclass(frozen=True, slots=True)
class Invitation:
    """Where and as whom a member joins; the fields of JoinGroupRequest."""

    group: str
    backend: str
    host: str
    port: int
    world_size: int
    rank: int
    timeout_s: float


class Group:
    """A joined process group in which rank 0 broadcasts."""

    def __init__(self, backend: Any, name: str, store: Any, timeout_s: float) -> None:
        self.name = name
        self._backend = backend
        # The group talks through the store for as long as it lives.
        self._store = store
        self._timeout_s = timeout_s

    def start_broadcast(self, data: torch.Tensor) -> Any:
        """Starts sending `data` from rank 0, or receiving into it elsewhere; give the result to `finish`."""
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        return self._backend.broadcast([data], options)

    def finish(self, work: Any) -> None:
        """Waits for a broadcast. Raises UnavailableError when a member is gone or the time-out is over."""
        try:
            work.wait(_seconds(self._timeout_s))
        except RuntimeError as error:
            raise UnavailableError(
                f"the broadcast in group {self.name} broke: {first_line(error)}", reason="TRANSFER_FAILED"
            ) from error

    def broadcast(self, data: torch.Tensor) -> None:
        """Both of them."""
        self.finish(self.start_broadcast(data))


def join(invitation: Invitation) -> Group:
    """A member's way into a group.

    Raises UnavailableError when the store cannot be reached or the trainer sends the members home,
    DeadlineError when the others do not come.
    """
    timeout = _seconds(invitation.timeout_s)
    try:
        store = dist.TCPStore(invitation.host, invitation.port, None, False, timeout, wait_for_workers=False)
        rooms = dist.PrefixStore(invitation.group, store)
        rooms.set(f"here/{invitation.rank}", b"1")
        rooms.wait([GO], timeout)
        departs = rooms.get(GO) == DEPART
    except RuntimeError as error:
        raise DeadlineError(
            f"rank {invitation.rank} waited {invitation.timeout_s:g} s for the trainer's store at "
            f"{invitation.host}:{invitation.port}: {first_line(error)}"
        ) from error
    if not departs:
        raise UnavailableError(f"the trainer gave up group {invitation.group}", reason="TRANSFER_FAILED")
    return connect(invitation, rooms)


def connect(invitation: Invitation, store: Any) -> Group:
    """Connects all members; each calls it once everybody is at the store."""
    timeout = _seconds(invitation.timeout_s)
    peers = dist.PrefixStore("peers", store)
    try:
        if invitation.backend == "gloo":
            gloo = dist.ProcessGroupGloo._Options()
            gloo._timeout = timeout
            gloo._devices = [dist.ProcessGroupGloo.create_device(hostname=local_address(invitation))]
            backend: Any = dist.ProcessGroupGloo(peers, invitation.rank, invitation.world_size, gloo)
        else:
            nccl = dist.ProcessGroupNCCL.Options()
            nccl._timeout = timeout
            backend = dist.ProcessGroupNCCL(peers, invitation.rank, invitation.world_size, nccl)
    except RuntimeError as error:
        raise UnavailableError(
            f"rank {invitation.rank} could not connect to the other members of group {invitation.group}: "
            f"{first_line(error)}",
            reason="TRANSFER_FAILED",
        ) from error
    return Group(backend, invitation.group, store, invitation.timeout_s)


class Meeting:
    """The trainer's store; it lives as long as the publisher."""

    def __init__(self, interface: str, timeout_s: float) -> None:
        """Listens at a free port of the address `interface` only. Raises ConfigError."""
        family = socket.AF_INET6 if ":" in interface else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.bind((interface, 0))
        except OSError as error:
            listener.close()
            raise ConfigError(
                f"weights.interface: cannot listen on {interface}: {error.strerror}; name an address of this machine"
            ) from error
        listener.listen()
        self.host = interface
        self.port = int(listener.getsockname()[1])
        self._timeout_s = timeout_s
        self._store = dist.TCPStore(
            self.host,
            self.port,
            None,
            True,
            _seconds(timeout_s),
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )

    def invite(self, group: str, backend: str, world_size: int, rank: int) -> Invitation:
        """The invitation of one rank."""
        return Invitation(group, backend, self.host, self.port, world_size, rank, self._timeout_s)

    def is_here(self, group: str, rank: int) -> bool:
        """Whether a member stands at the store."""
        return bool(dist.PrefixStore(group, self._store).check([f"here/{rank}"]))

    def depart(self, group: str, backend: str, world_size: int) -> Group:
        """Lets the members connect, and connects. Raises UnavailableError."""
        rooms = dist.PrefixStore(group, self._store)
        rooms.set(GO, DEPART)
        return connect(self.invite(group, backend, world_size, 0), rooms)

    def disperse(self, group: str) -> None:
        """Sends home those who came."""
        dist.PrefixStore(group, self._store).set(GO, DISPERSE)


def local_address(invitation: Invitation) -> str:
    """The address of this machine from which the trainer is reached: the one to take connections on."""
    family = socket.AF_INET6 if ":" in invitation.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((invitation.host, invitation.port))
        return str(probe.getsockname()[0])


def first_line(error: BaseException) -> str:
    """An error's text without the stack that torch appends."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _seconds(timeout_s: float) -> datetime.timedelta:
    return datetime.timedelta(seconds=timeout_s)
