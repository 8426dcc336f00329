"""The critic as a process of two ranks: the same answers as one, and no hang when a rank dies."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rlctl.clients.critic import CriticClient
from rlctl.core.errors import RlctlError
from rlctl.core.ports import free_port
from rlctl.rpc.config import ChannelConfig
from rlctl.rpc.pool import Pool
from rlctl.v1 import critic_pb2 as pb
from rlctl.v1.tensor_pb2 import TokenSequence
from support.ranks import rank_environments
from support.tiny import tiny_llama

pytestmark = pytest.mark.anyio

SEQUENCES = [([1, 20, 21, 22, 23], [30, 31, 2]), ([1], [44, 2]), ([1, 9, 9, 9], [12])]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("critic"))


class Critic:
    """`ranks` processes and a client of rank 0."""

    def __init__(self, model: Path, folder: Path, ranks: int) -> None:
        address = f"127.0.0.1:{free_port()}"
        settings = [
            f"model={model}", f"checkpoint_dir={folder}", f"server.listen={address}", "server.metrics_listen=none",
            "server.drain_s=1", f"learner.ranks={ranks}", "learner.dtype=float32", "learner.zero_stage=3",
            "learner.optimizer.lr=0.01", "learner.micro_batch_tokens=16",
        ]  # fmt: skip
        self.processes = [
            subprocess.Popen([sys.executable, "-m", "rlctl.critic", *settings], env=environment)
            for environment in rank_environments(ranks)
        ]
        self.client = CriticClient(Pool("critic", ChannelConfig(addresses=[address], timeout_s=60)))

    async def train(self) -> tuple[list[dict[str, float]], list[list[float]]]:
        """Three steps, a checkpoint, two more, back to the checkpoint: metrics and values."""
        await self.client.pool.ready(timeout_s=180)
        await self.client.load_checkpoint(pb.LoadCheckpointRequest(epoch=1))
        metrics = [await self._step(step) for step in range(3)]
        await self.client.save_checkpoint(pb.SaveCheckpointRequest(epoch=1, tag="a"))
        saved = await self.values()
        await self._step(3)
        await self.client.load_checkpoint(pb.LoadCheckpointRequest(epoch=1, tag="a"))
        assert await self.values() == saved
        return metrics, saved

    async def _step(self, step: int) -> dict[str, float]:
        sequences = [
            pb.TrainSequence(
                tokens=TokenSequence(prompt_ids=prompt, response_ids=response), mask=[1] * len(response),
                old_values=[0.0] * len(response), returns=[0.1 * len(prompt)] * len(response),
            )
            for prompt, response in SEQUENCES
        ]  # fmt: skip
        header = pb.TrainHeader(epoch=1, step=step, num_sequences=len(sequences))
        return dict((await self.client.train(header, sequences)).metrics)

    async def values(self) -> list[list[float]]:
        sequences = [TokenSequence(prompt_ids=prompt, response_ids=response) for prompt, response in SEQUENCES]
        answer = await self.client.compute_values(pb.ComputeValuesRequest(epoch=1, sequences=sequences), timeout_s=30)
        return [list(one.values) for one in answer.values]

    async def exit_codes(self, timeout_s: float) -> list[int | None]:
        deadline = time.monotonic() + timeout_s
        while any(process.poll() is None for process in self.processes) and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
        return [process.poll() for process in self.processes]


@pytest.fixture
async def critics(model: Path, tmp_path: Path) -> AsyncIterator[list[Critic]]:
    both = [Critic(model, tmp_path / "one", 1), Critic(model, tmp_path / "two", 2)]
    yield both
    for critic in both:
        await critic.client.pool.close()
        for process in critic.processes:
            process.kill()
            process.wait()


async def test_two_ranks_agree_with_one_and_a_dead_one_ends_the_critic(critics: list[Critic]) -> None:
    one, two = critics
    metrics, values = await one.train()
    other_metrics, other_values = await two.train()
    for given, wanted in zip(other_metrics, metrics, strict=True):
        assert given == pytest.approx(wanted, rel=1e-4, abs=1e-6)
    for row, wanted_row in zip(other_values, values, strict=True):
        assert row == pytest.approx(wanted_row, abs=1e-4)

    one.processes[0].send_signal(signal.SIGTERM)
    assert await one.exit_codes(30) == [0]

    two.processes[1].kill()
    with pytest.raises(RlctlError):
        await two.values()
    codes = await two.exit_codes(30)
    assert codes[0] == 1, "rank 0 must end, loudly, once a rank is dead"


async def test_sigterm_to_the_group_ends_every_rank(model: Path, tmp_path: Path) -> None:
    critic = Critic(model, tmp_path / "critic", 2)
    try:
        await critic.client.pool.ready(timeout_s=180)
        for process in critic.processes:
            process.send_signal(signal.SIGTERM)
        assert await critic.exit_codes(30) == [0, 0]
    finally:
        await critic.client.pool.close()
        for process in critic.processes:
            process.kill()
            process.wait()
