"""New weights to the generation replicas, and the weights of today to those that come late."""

from __future__ import annotations

import logging

import torch

from rlctl.bus.registry import Instance, Registry
from rlctl.clients.weights import WeightsClient
from rlctl.core.errors import UnavailableError
from rlctl.learner.learner import Learner
from rlctl.learner.sequence import Sequence
from rlctl.rpc.portal import Portal
from rlctl.trainer.config import TrainerConfig
from rlctl.trainer.ranks import Ranks
from rlctl.trainer.versions import PolicyVersions
from rlctl.v1 import weights_pb2
from rlctl.weights.publisher import Member, Publisher

logger = logging.getLogger(__name__)

EXPORT = "export"
CANARY = "canary"
CANARY_TOKENS = 24
ATTEMPTS = 5


class PolicySync:
    """On rank 0: knows which replica has which version, and publishes through `Publisher`."""

    def __init__(
        self,
        config: TrainerConfig,
        portal: Portal,
        registry: Registry,
        learner: Learner,
        ranks: Ranks,
        versions: PolicyVersions,
        fence: int,
        prompt_ids: list[int],
    ) -> None:
        self._config = config
        self._portal = portal
        self._registry = registry
        self._learner = learner
        self._ranks = ranks
        self.versions = versions
        self._fence = fence
        self._publisher = Publisher(config.weights, portal, learner.device)
        self._canary_prompt = prompt_ids
        self._has: dict[str, int] = {}
        self._canary: weights_pb2.Canary | None = None
        self._refusals = 0
        self.version = 0
        self.bytes_sent = 0

    @property
    def replicas(self) -> int:
        """Replicas that serve the version of today."""
        return sum(version == self.version for version in self._has.values())

    def publish(self, step: int) -> int:
        """Publishes the weights after `step` steps as a new version to every replica there is; returns the version.

        Replicas that are not there, or fail, get it by `catch_up`.
        """
        self.version = self.versions.take(step)
        self._canary = self._make_canary()
        self._send(self._instances())
        if not self.replicas:
            logger.warning("no generation replica has version %d yet; waiting for one", self.version)
        return self.version

    def catch_up(self) -> None:
        """Sends the version of today to replicas that came since, or had failed.

        Raises UnavailableError when not one replica took it in `ATTEMPTS` attempts.
        """
        late = [one for one in self._instances() if self._has.get(one.instance_id) != self.version]
        if not late:
            return
        logger.info("sending version %d to %s", self.version, ", ".join(one.address for one in late))
        self._send(late)
        self._refusals = 0 if self.replicas else self._refusals + 1
        if self._refusals >= ATTEMPTS:
            raise UnavailableError(
                f"no generation replica took the weights of version {self.version} in {ATTEMPTS} attempts; the errors "
                "above and the replicas' logs say why",
                reason="WEIGHTS_REFUSED",
            )

    def _instances(self) -> list[Instance]:
        live = self._portal.call(loaded_replicas, self._registry, timeout_s=self._config.weights.timeout_s)
        ids = {one.instance_id for one in live}
        self._has = {name: version for name, version in self._has.items() if name in ids}
        return live

    def _send(self, instances: list[Instance]) -> None:
        if not instances:
            return
        members = self._portal.call(self._members, instances)
        try:
            result = self._publisher.publish(
                epoch=self._fence,
                version=self.version,
                weights=lambda: self._ranks.run(EXPORT),
                members=members,
                canary=self._canary,
            )
        finally:
            for member in members:
                self._portal.call(member.client.close)
        self.bytes_sent = result.num_bytes
        for name in result.ok:
            self._has[name] = self.version
        for name, error in result.failed.items():
            self._has.pop(name, None)
            logger.error("generation replica %s did not take version %d: %s", name, self.version, error.message)

    async def _members(self, instances: list[Instance]) -> list[Member]:
        """Runs on the portal's loop, to which a client's connection belongs."""
        return [
            Member(
                one.instance_id,
                one.address,
                WeightsClient(one.address, self._config.generation),
                int(one.extra.get("workers", "1")),
            )
            for one in instances
        ]

    def _make_canary(self) -> weights_pb2.Canary:
        logprobs = self._ranks.run(CANARY)
        return weights_pb2.Canary(token_ids=canary_sequence(self._canary_prompt), logprobs=logprobs.tolist())


def canary_sequence(prompt_ids: list[int]) -> list[int]:
    """The prompt, then its tokens once more in reverse: text that no model finds likely, so that its log-probs tell."""
    return (prompt_ids + prompt_ids[::-1])[:CANARY_TOKENS]


def canary_logprobs(learner: Learner, prompt_ids: list[int]) -> torch.Tensor:
    """Log-probs of every canary token but the first, temperature 1; every rank must call it."""
    tokens = torch.tensor(canary_sequence(prompt_ids), dtype=torch.int64)
    whole = Sequence(tokens[:1], tokens[1:], torch.ones(len(tokens) - 1, dtype=torch.bool))
    return learner.logprobs([whole], 1.0)[0]


async def loaded_replicas(registry: Registry) -> list[Instance]:
    """Generation replicas that can take weights: those that tell the version they have."""
    return [one for one in await registry.list("generation") if "policy_version" in one.extra]
