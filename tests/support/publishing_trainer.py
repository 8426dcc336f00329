"""A trainer for tests: reads commands, a JSON object a line, and answers each with one.

    {"model": folder, "seed": int, "version": int, "epoch": int, "members": {name: address}, ...}

publishes the folder's weights plus noise of that seed (0: none) and gives the outcome. Options: "bucket_kb",
"timeout_s", "canary": token ids, "stale_canary": the canary's log-probs are those of other weights, "corrupt": the
first bucket's bytes change after its digest was taken, "omit": name of a weight that is not sent, "pause_s": seconds
before the second bucket.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from rlctl.clients.weights import WeightsClient
from rlctl.learner.export import Weights
from rlctl.rpc.config import ChannelConfig
from rlctl.rpc.portal import Portal
from rlctl.v1 import weights_pb2 as pb
from rlctl.weights import bucket, publisher
from rlctl.weights.config import WeightsConfig


def disturbed(folder: Path | str, seed: int) -> Any:
    """The model with noise on every weight, the same everywhere for the same seed."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    noise = torch.Generator().manual_seed(seed)
    if seed:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=noise) * 0.3 * parameter.std().nan_to_num(1.0))
    return model


@torch.no_grad()
def token_logprobs(model: Any, token_ids: list[int], temperature: float = 1.0) -> torch.Tensor:
    """log p(token_ids[i] | token_ids[:i]) for i >= 1."""
    tokens = torch.tensor([token_ids])
    logprobs = (model(tokens).logits[0, :-1].float() / temperature).log_softmax(-1)
    return logprobs.gather(-1, tokens[0, 1:, None])[:, 0]


class Trainer:
    def __init__(self) -> None:
        self.portal = Portal()
        self.publishers: dict[tuple[int, float], publisher.Publisher] = {}
        self.clients: dict[str, WeightsClient] = {}

    def publish(self, command: dict[str, Any]) -> dict[str, Any]:
        model = disturbed(command["model"], command["seed"])
        members = [
            publisher.Member(name, address, self.client(address), 1) for name, address in command["members"].items()
        ]
        canary = None
        if "canary" in command:
            known = disturbed(command["model"], command["seed"] + 1) if command.get("stale_canary") else model
            canary = pb.Canary(token_ids=command["canary"], logprobs=token_logprobs(known, command["canary"]).tolist())

        def weights() -> Any:
            for index, (name, tensor) in enumerate(Weights(model, partitioned=False)):
                if index == 8:
                    time.sleep(command.get("pause_s", 0))
                if name != command.get("omit"):
                    yield name, tensor

        honest = bucket.digest
        if command.get("corrupt"):

            def lying(data: torch.Tensor) -> bytes:
                digest = honest(data)
                data[5] ^= 1
                return digest

            bucket.digest = lying
        try:
            result = self.publisher(command).publish(
                epoch=command.get("epoch", 1),
                version=command["version"],
                weights=weights,
                members=members,
                canary=canary,
            )
        finally:
            bucket.digest = honest
        failed = {name: [type(one).__name__, one.reason, one.message] for name, one in result.failed.items()}
        return {"ok": result.ok, "failed": failed, "seconds": result.seconds, "num_bytes": result.num_bytes}

    def publisher(self, command: dict[str, Any]) -> publisher.Publisher:
        key = (command.get("bucket_kb", 128), command.get("timeout_s", 20.0))
        if key not in self.publishers:
            config = WeightsConfig(bucket_mb=1, timeout_s=key[1])
            made = publisher.Publisher(config, self.portal, torch.device("cpu"))
            made._packer = bucket.Packer(key[0] << 10, torch.device("cpu"))
            self.publishers[key] = made
        return self.publishers[key]

    def client(self, address: str) -> WeightsClient:
        if address not in self.clients:

            async def make() -> WeightsClient:
                return WeightsClient(address, ChannelConfig())

            self.clients[address] = self.portal.call(make)
        return self.clients[address]


def main() -> None:
    torch.set_num_threads(1)
    trainer = Trainer()
    for line in sys.stdin:
        print(json.dumps(trainer.publish(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
