"""One replica of each engine for the whole session, a trainer that publishes to them, and a portal to call them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from rlctl.rpc.portal import Portal
from support.generation import Caller, Deployment, Replica, TrainerProcess
from support.tiny import tiny_llama


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Heads of 32, the smallest that vLLM has on a CPU."""
    folder = tmp_path_factory.mktemp("models")
    return {
        "tied": tiny_llama(folder / "tied", hidden=128),
        "untied": tiny_llama(folder / "untied", hidden=128, tied=False),
    }


@pytest.fixture(scope="session")
def portal() -> Iterator[Portal]:
    with Portal() as one:
        yield one


@pytest.fixture(scope="session")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainerProcess]:
    process = TrainerProcess(tmp_path_factory.mktemp("trainer") / "trainer.log")
    yield process
    process.stop()


Deploy = Callable[[str], Deployment]


@pytest.fixture(scope="session")
def deploy(
    models: dict[str, Path], portal: Portal, trainer: TrainerProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deploy]:
    """Replicas by engine, serving. Both start at once, for most of their start is imports."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    logs = tmp_path_factory.mktemp("replicas")
    with ExitStack() as stack:
        known: dict[str, Deployment] = {}
        for engine in ("transformers", "vllm"):
            replica = Replica(models["tied"], engine, logs / f"{engine}.log", max_num_seqs=16)
            stack.callback(replica.stop)
            known[engine] = Deployment(replica, portal, trainer)

        def get(engine: str) -> Deployment:
            deployment = known[engine]
            if not deployment.version:
                deployment.process.wait()
            if not deployment.process.serving:
                deployment.publish(0)
            assert deployment.process.serving
            return deployment

        yield get
        for deployment in known.values():
            deployment.process.process.terminate()


@pytest.fixture(params=["transformers", "vllm"])
def deployment(request: pytest.FixtureRequest, deploy: Deploy) -> Deployment:
    """A replica of each engine."""
    return deploy(request.param)


@pytest.fixture
def caller(deployment: Deployment) -> Caller:
    return deployment.caller
