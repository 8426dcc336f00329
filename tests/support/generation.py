"""Generation replicas and a trainer that publishes to them, as processes of their own."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import grpc
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc

from rlctl.core.ports import free_port
from rlctl.rpc.channel import Channel
from rlctl.rpc.config import ChannelConfig
from rlctl.rpc.portal import Portal
from rlctl.v1 import generation_pb2 as pb
from rlctl.v1.generation_pb2_grpc import GenerationServiceStub
from support.publishing_trainer import disturbed, token_logprobs

#: Prompt of the canary; the tiny model's vocabulary has 80 tokens.
CANARY = [1, *range(5, 40)]

_versions = itertools.count(1)

#: vLLM's import alone takes half a minute on a machine that is busy with other things.
START_S = 500.0


class Replica:
    """`python -m rlctl.generation`, in a process group of its own."""

    def __init__(self, model: Path, engine: str, log: Path, **settings: object) -> None:
        self.model = model
        self.engine = engine
        self.address = f"127.0.0.1:{free_port()}"
        self.log = log
        values = {
            "model": str(model),
            "engine": engine,
            "dtype": "float32",
            "kv_cache_mb": 64,
            "server.listen": self.address,
            "weights.timeout_s": 20.0,
            **settings,
        }
        arguments = [f"{key}={json.dumps(value)}" for key, value in values.items()]
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rlctl.generation", *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def health(self) -> int:
        with grpc.insecure_channel(self.address) as channel:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=5)
        return int(answer.status)

    @property
    def serving(self) -> bool:
        try:
            return self.health() == health_pb2.HealthCheckResponse.SERVING
        except grpc.RpcError:
            return False

    def wait(self, serving: bool = True, timeout_s: float = START_S) -> Replica:
        """Waits for its health."""
        end = time.monotonic() + timeout_s
        while self.serving != serving:
            if self.process.poll() is not None:
                raise RuntimeError(f"the replica ended with {self.process.returncode}:\n{self.log.read_text()[-3000:]}")
            if time.monotonic() > end:
                raise TimeoutError(f"serving is not {serving} after {timeout_s} s:\n{self.log.read_text()[-3000:]}")
            time.sleep(0.05)
        return self

    def wait_until_loaded(self) -> Replica:
        """Waits for its word: one that must catch up is loaded, and does not serve yet."""
        end = time.monotonic() + START_S
        while "generation is loaded" not in self.log.read_text(errors="replace"):
            if self.process.poll() is not None or time.monotonic() > end:
                raise TimeoutError(f"the replica was not loaded:\n{self.log.read_text()[-3000:]}")
            time.sleep(0.05)
        return self

    def stop(self) -> None:
        """Ends its whole process group."""
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(20)


class Caller:
    """Calls one address, synchronously."""

    def __init__(self, portal: Portal, address: str) -> None:
        self.portal = portal
        self.address = address
        self.channel: Channel = portal.call(self._connect)

    async def _connect(self) -> Channel:
        return Channel("generation", self.address, ChannelConfig(timeout_s=60.0))

    def start(self, request: pb.GenerateRequest, timeout_s: float | None = None) -> Any:
        """A Generate call as a future."""
        return self.portal.spawn(self.channel.call, GenerationServiceStub, "Generate", request, timeout_s=timeout_s)

    def generate(self, request: pb.GenerateRequest, timeout_s: float | None = None) -> pb.GenerateResponse:
        answer: pb.GenerateResponse = self.start(request, timeout_s).result(120)
        return answer

    def tokens(self, prompt: list[int], **sampling: Any) -> pb.GenerateResponse:
        """Samples with log-probs from token ids."""
        request = pb.GenerateRequest(sampling=pb.SamplingParams(**sampling), return_logprobs=True)
        request.tokens.ids.extend(prompt)
        return self.generate(request)

    def stream(self, request: pb.GenerateRequest) -> list[pb.Sample]:
        async def collect() -> list[pb.Sample]:
            message = pb.GenerateStreamRequest(request=request)
            pieces = self.channel.stream(GenerationServiceStub, "GenerateStream", message)
            return [piece.delta async for piece in pieces]

        return self.portal.call(collect, timeout_s=120)

    def model(self) -> pb.GetModelResponse:
        answer: pb.GetModelResponse = self.portal.call(
            self.channel.call, GenerationServiceStub, "GetModel", pb.GetModelRequest(), timeout_s=60
        )
        return answer

    def close(self) -> None:
        self.portal.call(self.channel.close)


class TrainerProcess:
    """A process with a model of its own that publishes disturbed weights on command; see publishing_trainer.py."""

    def __init__(self, log: Path) -> None:
        script = Path(__file__).with_name("publishing_trainer.py")
        self._log = log.open("wb")
        self.process = subprocess.Popen(
            [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )

    def send(self, **command: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the trainer ended; see {self._log.name}")
        result: dict[str, Any] = json.loads(line)
        return result

    def publish(self, **command: Any) -> dict[str, Any]:
        """Publishes and returns {"ok", "failed": {name: [class, reason, message]}, "seconds", "num_bytes"}."""
        self.send(**command)
        return self.answer()

    def stop(self) -> None:
        self.process.kill()
        self.process.wait(20)
        self._log.close()


class Deployment:
    """A replica, what it should hold, and how to give it something else."""

    def __init__(self, process: Replica, portal: Portal, trainer: TrainerProcess) -> None:
        self.process = process
        self.caller = Caller(portal, process.address)
        self.trainer = trainer
        self.seed = 0
        self.version = 0
        self.epoch = 1

    def command(self, seed: int, **options: Any) -> dict[str, Any]:
        """A command for the trainer, with the next version."""
        return {
            "model": str(self.process.model),
            "seed": seed,
            "version": next(_versions),
            "epoch": self.epoch,
            "members": {"it": self.process.address},
            "canary": CANARY,
            **options,
        }

    def publish(self, seed: int, **options: Any) -> dict[str, Any]:
        """Publishes the weights of a seed; notes them as held when that went well."""
        command = self.command(seed, **options)
        result = self.trainer.publish(**command)
        if result["ok"]:
            self.seed, self.version = seed, command["version"]
        return result

    def logprobs(self, prompt: list[int], response: list[int], temperature: float = 1.0) -> torch.Tensor:
        """What transformers says of a response under the weights that the replica should hold."""
        model = disturbed(self.process.model, self.seed)
        return token_logprobs(model, prompt + response, temperature)[len(prompt) - 1 :]
