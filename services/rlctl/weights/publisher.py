"""The trainer's half of a sync: one version of the weights to every replica that can take it.

    gather the group ─► open ─► [ pack bucket i+1 │ broadcast bucket i, replicas check and load it ] ─► close
                                                                                                  ─► activate

A member that is dead, late or refuses is left out with its error, the group is gathered again without it and the
update is sent again to the rest. When a broadcast breaks and nobody is to blame, each member gets a group of its own.
Each round ends within a few time-outs and leaves out a member or succeeds, so that the whole never hangs.
"""

from __future__ import annotations

import concurrent.futures
import logging
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from rlctl.core.errors import DeadlineError, RlctlError, UnavailableError
from rlctl.rpc.portal import Portal
from rlctl.v1 import weights_pb2 as pb
from rlctl.weights.bucket import Packer
from rlctl.weights.config import WeightsConfig
from rlctl.weights.group import Group, Meeting
from rlctl.weights.messages import to_join
from rlctl.weights.session import Member, Session
from rlctl.weights.transmission import INNOCENT, Transmission, Weights, error_of

__all__ = ["Member", "PublishResult", "Publisher", "Weights"]

logger = logging.getLogger(__name__)

#: Mean absolute log-prob difference allowed on the canary, by the type of the weights.
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 5e-2, torch.float16: 5e-2}


@dataclass
class PublishResult:
    """Who serves the version now, and who does not and why (by member name)."""

    ok: list[str] = field(default_factory=list)
    failed: dict[str, RlctlError] = field(default_factory=dict)
    seconds: float = 0.0
    num_bytes: int = 0
    """Bytes of one copy of the weights."""


@dataclass
class _Round:
    """What came of one attempt with a cohort of members."""

    loaded: list[Member] = field(default_factory=list)
    blamed: dict[str, RlctlError] = field(default_factory=dict)
    innocent: dict[str, RlctlError] = field(default_factory=dict)
    """Met an error that is not theirs."""

    def note(self, errors: dict[str, RlctlError]) -> None:
        for name, error in errors.items():
            (self.innocent if error.reason in INNOCENT else self.blamed)[name] = error


class Publisher:
    """Publishes versions; synchronous, for the trainer's main thread, with gRPC in the portal's."""

    def __init__(self, config: WeightsConfig, portal: Portal, device: torch.device) -> None:
        """`device` is where the weights lie. Raises ConfigError when the rendezvous cannot listen."""
        self._timeout_s = config.timeout_s
        self._tolerance = config.canary_tolerance
        self._portal = portal
        self._backend: str = config.backend
        if self._backend == "auto":
            self._backend = "nccl" if device.type == "cuda" else "gloo"
        self._packer = Packer(config.bucket_mb << 20, device if self._backend == "nccl" else torch.device("cpu"))
        self._meeting = Meeting(config.interface, config.timeout_s)
        self._group: Group | None = None
        self._roster: list[tuple[str, int]] = []
        self._dtype = torch.float32

    def publish(
        self, *, epoch: int, version: int, weights: Weights, members: list[Member], canary: pb.Canary | None = None
    ) -> PublishResult:
        """Sends `version` to `members` and lets those serve it who took it whole.

        `weights()` begins a pass over (Hugging Face name, tensor). A pass that is begun is also finished, because the
        ranks of a sharded model walk it together; a second one is begun only after a failure.
        `canary` has the log-probs of a prompt under the new weights; a tolerance of 0 takes the setting.
        """
        begin = time.monotonic()
        result = PublishResult()
        cohorts = [list(members)] if members else []
        while cohorts:
            cohort = cohorts.pop(0)
            outcome = self._attempt(cohort, epoch, version, lambda: self._watch(weights()), result)
            result.failed.update(outcome.blamed)
            self._activate(outcome.loaded, epoch, version, canary, result)
            rest = [one for one in cohort if one.name not in outcome.blamed and one not in outcome.loaded]
            stale = all(error.reason == "UNKNOWN_GROUP" for error in outcome.innocent.values())
            if rest and (outcome.blamed or stale):
                cohorts.insert(0, rest)
            elif len(rest) > 1:
                cohorts[:0] = [[one] for one in rest]
            else:
                result.failed.update(outcome.innocent)
        for name, error in result.failed.items():
            logger.warning("version %d did not reach %s: %s", version, name, error.message)
        result.seconds = time.monotonic() - begin
        return result

    def _watch(self, weights: Iterator[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """Remembers the type of the weights, which decides how exactly the canary is checked."""
        for name, tensor in weights:
            self._dtype = tensor.dtype
            yield name, tensor

    def _attempt(
        self, cohort: list[Member], epoch: int, version: int, weights: Weights, result: PublishResult
    ) -> _Round:
        outcome = _Round()
        roster = [(member.name, member.workers) for member in cohort]
        fresh = self._group is None or self._roster != roster
        group = self._gather(cohort, epoch, outcome) if fresh else self._group
        # Unless all goes well, the group is of no more use.
        self._group = None
        if group is None:
            return outcome
        sessions = [Session(member, self._timeout_s) for member in cohort]
        transmission = Transmission(self._portal, sessions, group, self._timeout_s)
        try:
            transmission.run(epoch, version, self._packer, weights)
        finally:
            transmission.end()
        outcome.note(transmission.errors)
        outcome.loaded = [session.member for session in transmission.loaded]
        if fresh:
            # Who has joined this very group cannot have forgotten it.
            for name, error in list(outcome.innocent.items()):
                if error.reason == "UNKNOWN_GROUP":
                    outcome.blamed[name] = outcome.innocent.pop(name)
        if not transmission.errors:
            self._group, self._roster = group, roster
            result.num_bytes = transmission.num_bytes
        elif outcome.loaded:
            result.num_bytes = transmission.num_bytes
        return outcome

    def _gather(self, cohort: list[Member], epoch: int, outcome: _Round) -> Group | None:
        """A new group of just these members, or nothing and who is to blame."""
        name = uuid.uuid4().hex
        world_size = 1 + sum(member.workers for member in cohort)
        ranks: dict[str, range] = {}
        calls: dict[str, concurrent.futures.Future[Any]] = {}
        first = 1
        for member in cohort:
            ranks[member.name] = range(first, first + member.workers)
            request = to_join(epoch, self._meeting.invite(name, self._backend, world_size, first))
            calls[member.name] = self._portal.spawn(member.client.join_group, request, timeout_s=2 * self._timeout_s)
            first += member.workers
        try:
            outcome.note(self._assemble(cohort, name, ranks, calls))
            if outcome.blamed or outcome.innocent:
                self._meeting.disperse(name)
                return None
            group, broken = None, None
            try:
                group = self._meeting.depart(name, self._backend, world_size)
            except UnavailableError as reason:
                broken = reason
            concurrent.futures.wait(calls.values(), self._timeout_s)
            for member in cohort:
                error = (
                    _late(member, self._timeout_s) if not calls[member.name].done() else error_of(calls[member.name])
                )
                error = error or broken
                if error is not None:
                    outcome.note({member.name: error})
            return None if outcome.blamed or outcome.innocent else group
        finally:
            for call in calls.values():
                call.cancel()

    def _assemble(
        self,
        cohort: list[Member],
        group: str,
        ranks: dict[str, range],
        calls: dict[str, concurrent.futures.Future[Any]],
    ) -> dict[str, RlctlError]:
        """Waits until all stand at the store; else the errors of those who do not."""
        deadline = time.monotonic() + self._timeout_s
        absent = list(cohort)
        while True:
            absent = [one for one in absent if not all(self._meeting.is_here(group, rank) for rank in ranks[one.name])]
            if not absent:
                return {}
            errors = {one.name: error for one in absent if (error := error_of(calls[one.name])) is not None}
            if not errors and time.monotonic() > deadline:
                errors = {one.name: _late(one, self._timeout_s) for one in absent}
            if errors:
                return errors
            time.sleep(0.002)

    def _activate(
        self, members: list[Member], epoch: int, version: int, canary: pb.Canary | None, result: PublishResult
    ) -> None:
        """Lets members serve what they have loaded."""
        request = pb.ActivateRequest(epoch=epoch, policy_version=version)
        if canary is not None:
            request.canary.CopyFrom(canary)
            if not canary.tolerance:
                request.canary.tolerance = self._tolerance or TOLERANCE[self._dtype]
        calls = {
            one.name: self._portal.spawn(one.client.activate, request, timeout_s=self._timeout_s) for one in members
        }
        concurrent.futures.wait(calls.values(), self._timeout_s + 1)
        for one in members:
            call = calls[one.name]
            error = error_of(call) if call.done() else _late(one, self._timeout_s)
            if error is None:
                result.ok.append(one.name)
            else:
                call.cancel()
                result.failed[one.name] = error


def _late(member: Member, timeout_s: float) -> DeadlineError:
    return DeadlineError(f"generation at {member.address} gave no answer within {timeout_s:g} s")
