"""Syncs to several replicas of which one is dead, slow or new."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlctl.rpc.portal import Portal
from support.generation import CANARY, Caller, Replica, TrainerProcess

TIMEOUT_S = 4.0


@pytest.fixture(scope="module")
def replicas(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Replica]]:
    logs = tmp_path_factory.mktemp("members")
    started = [
        Replica(models["tied"], "transformers", logs / f"{index}.log", catch_up=index == 0) for index in range(4)
    ]
    try:
        yield started
    finally:
        for one in started:
            one.process.send_signal(signal.SIGCONT)
            one.stop()


class Publisher:
    """Publishes to replicas by their index."""

    def __init__(self, model: Path, trainer: TrainerProcess, replicas: list[Replica]) -> None:
        self.model = model
        self.trainer = trainer
        self.replicas = replicas

    def begin(self, version: int, members: list[int], **options: object) -> None:
        self.trainer.send(
            model=str(self.model),
            seed=version,
            version=version,
            members={str(index): self.replicas[index].address for index in members},
            canary=CANARY,
            timeout_s=TIMEOUT_S,
            **options,
        )

    def end(self) -> dict[str, Any]:
        return self.trainer.answer()


def test_members_that_die_are_slow_or_come_late(
    models: dict[str, Path], replicas: list[Replica], trainer: TrainerProcess, portal: Portal
) -> None:
    """One story, for each process costs its start."""
    publisher = Publisher(models["tied"], trainer, replicas)
    for one in replicas[1:]:
        one.wait()
    assert not replicas[0].wait_until_loaded().serving

    # 0 waits for the trainer's weights before it serves.
    publisher.begin(1, [0, 1, 2, 3])
    assert sorted(publisher.end()["ok"]) == ["0", "1", "2", "3"]
    replicas[0].wait(timeout_s=5)

    # 1 is killed between two buckets: the others get the version all the same, and soon.
    begin = time.monotonic()
    publisher.begin(2, [0, 1, 2, 3], bucket_kb=64, pause_s=1.5)
    time.sleep(0.8)
    replicas[1].process.kill()
    result = publisher.end()
    assert sorted(result["ok"]) == ["0", "2", "3"]
    assert "UnavailableError" in result["failed"]["1"]
    assert replicas[1].address in result["failed"]["1"][2]
    assert time.monotonic() - begin < 3 * TIMEOUT_S

    # It is still dead.
    publisher.begin(3, [0, 1, 2])
    result = publisher.end()
    assert sorted(result["ok"]) == ["0", "2"]
    assert list(result["failed"]) == ["1"]

    # 2 does not move any more: it is named, the rest goes on.
    begin = time.monotonic()
    publisher.begin(4, [0, 2, 3], bucket_kb=64, pause_s=1.5)
    time.sleep(0.8)
    replicas[2].process.send_signal(signal.SIGSTOP)
    result = publisher.end()
    assert sorted(result["ok"]) == ["0", "3"]
    assert result["failed"]["2"][0] == "DeadlineError"
    assert replicas[2].address in result["failed"]["2"][2]
    assert time.monotonic() - begin < 8 * TIMEOUT_S

    # It moves again, does not serve what it holds, and catches up with the next sync.
    replicas[2].process.send_signal(signal.SIGCONT)
    replicas[2].wait(serving=False, timeout_s=15)
    publisher.begin(5, [0, 2, 3])
    result = publisher.end()
    assert sorted(result["ok"]) == ["0", "2", "3"]
    for index in (0, 2, 3):
        replicas[index].wait(timeout_s=5)
        caller = Caller(portal, replicas[index].address)
        assert caller.model().policy_version == 5
        caller.close()
