"""The clients for synchronous programs: the same methods, without `await`.

    with GenerationClient(ChannelConfig(addresses=["127.0.0.1:50051"])) as client:
        print(client.generate_text("2 + 2 =")[0])

Each client has a thread of its own and may be used from several threads; `close()` ends it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Generic, Self, TypeVar

from rlctl.bus.config import BusConfig
from rlctl.clients import critic, evaluator, generation, reference, reward, trainer
from rlctl.rpc.config import ChannelConfig
from rlctl.rpc.pool import Pool
from rlctl.rpc.portal import Portal
from rlctl.v1 import critic_pb2, evaluator_pb2, generation_pb2, reference_pb2, reward_pb2, trainer_pb2

if TYPE_CHECKING:
    from rlctl.bus.bus import Bus

C = TypeVar("C")
T = TypeVar("T")


class _Blocking(Generic[C]):
    """Pool, client and the thread they live in."""

    service: ClassVar[str]
    kind: Callable[[Pool], C]

    def __init__(self, config: ChannelConfig, registry: BusConfig | None = None) -> None:
        """Replicas are those of `config.addresses`, else those in the registry. Raises ConfigError."""
        self._portal = Portal(f"rlctl-{self.service}")
        self._bus: Bus | None = None
        try:
            self._pool = self._portal.call(self._connect, config, registry)
        except BaseException:
            self._portal.close()
            raise
        self._client = type(self).kind(self._pool)

    def ready(self, replicas: int = 1, timeout_s: float | None = None) -> None:
        """Waits until so many replicas serve. Raises DeadlineError."""
        self._portal.call(partial(self._pool.ready, replicas, timeout_s))

    def close(self) -> None:
        """Cancels calls in flight and ends the thread."""
        self._portal.call(self._disconnect)
        self._portal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _connect(self, config: ChannelConfig, registry: BusConfig | None) -> Pool:
        if config.addresses or registry is None:
            return Pool(self.service, config)
        from rlctl.bus.bus import Bus
        from rlctl.bus.registry import Registry

        self._bus = await Bus.connect(registry, f"{self.service}-client")
        return Pool(self.service, config, Registry(self._bus))

    async def _disconnect(self) -> None:
        await self._pool.close()
        if self._bus is not None:
            await self._bus.close()

    def _iterate(self, stream: AsyncGenerator[T, None]) -> Iterator[T]:
        try:
            while True:
                item = self._portal.call(partial(_next, stream))
                if item is None:
                    return
                yield item[0]
        finally:
            self._portal.call(stream.aclose)


async def _next(stream: AsyncGenerator[T, None]) -> tuple[T] | None:
    async for item in stream:
        return (item,)
    return None


class GenerationClient(_Blocking[generation.GenerationClient]):
    """See `rlctl.clients.generation`."""

    service = "generation"
    kind = generation.GenerationClient

    def generate(
        self, request: generation_pb2.GenerateRequest, *, timeout_s: float | None = None
    ) -> generation_pb2.GenerateResponse:
        """Samples `request.sampling.n` responses."""
        return self._portal.call(partial(self._client.generate, request, timeout_s=timeout_s))

    def generate_stream(
        self, request: generation_pb2.GenerateRequest, *, timeout_s: float | None = None
    ) -> Iterator[generation_pb2.GenerateStreamResponse]:
        """One sample, piece by piece."""
        return self._iterate(self._client.generate_stream(request, timeout_s=timeout_s))

    def get_model(self, *, timeout_s: float | None = None) -> generation_pb2.GetModelResponse:
        """What one of the replicas serves."""
        return self._portal.call(partial(self._client.get_model, timeout_s=timeout_s))

    def generate_text(
        self,
        prompt: str | Sequence[tuple[str, str]],
        sampling: generation_pb2.SamplingParams | None = None,
        *,
        timeout_s: float | None = None,
    ) -> list[str]:
        """The texts of `sampling.n` responses to a text, or to a chat of (role, content) turns."""
        return self._portal.call(partial(self._client.generate_text, prompt, sampling, timeout_s=timeout_s))

    def stream_text(
        self,
        prompt: str | Sequence[tuple[str, str]],
        sampling: generation_pb2.SamplingParams | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Iterator[str]:
        """The text of one response, piece by piece."""
        return self._iterate(self._client.stream_text(prompt, sampling, timeout_s=timeout_s))


class RewardClient(_Blocking[reward.RewardClient]):
    """See `rlctl.clients.reward`."""

    service = "reward"
    kind = reward.RewardClient

    def score(self, request: reward_pb2.ScoreRequest, *, timeout_s: float | None = None) -> reward_pb2.ScoreResponse:
        """One score an item, in order."""
        return self._portal.call(partial(self._client.score, request, timeout_s=timeout_s))

    def get_reward_info(self, *, timeout_s: float | None = None) -> reward_pb2.GetRewardInfoResponse:
        """What scores here."""
        return self._portal.call(partial(self._client.get_reward_info, timeout_s=timeout_s))

    def score_text(
        self,
        prompts: Sequence[str],
        responses: Sequence[str],
        labels: Sequence[str] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> list[reward_pb2.ItemScore]:
        """Scores `responses[i]` to `prompts[i]`, with `labels[i]` as the right answer where given."""
        return self._portal.call(partial(self._client.score_text, prompts, responses, labels, timeout_s=timeout_s))


class ReferenceClient(_Blocking[reference.ReferenceClient]):
    """See `rlctl.clients.reference`."""

    service = "reference"
    kind = reference.ReferenceClient

    def compute_logprobs(
        self, request: reference_pb2.ComputeLogprobsRequest, *, timeout_s: float | None = None
    ) -> reference_pb2.ComputeLogprobsResponse:
        """Log-probs of the response tokens of each sequence."""
        return self._portal.call(partial(self._client.compute_logprobs, request, timeout_s=timeout_s))

    def compute_distributions(
        self, request: reference_pb2.ComputeDistributionsRequest, *, timeout_s: float | None = None
    ) -> list[reference_pb2.TokenDistributions]:
        """The distributions at the response tokens of each sequence; the request is split to fit messages."""
        return self._portal.call(partial(self._client.compute_distributions, request, timeout_s=timeout_s))

    def get_reference_info(self, *, timeout_s: float | None = None) -> reference_pb2.GetReferenceInfoResponse:
        """Which model one of the replicas serves."""
        return self._portal.call(partial(self._client.get_reference_info, timeout_s=timeout_s))


class CriticClient(_Blocking[critic.CriticClient]):
    """See `rlctl.clients.critic`."""

    service = "critic"
    kind = critic.CriticClient

    def compute_values(
        self, request: critic_pb2.ComputeValuesRequest, *, timeout_s: float | None = None
    ) -> critic_pb2.ComputeValuesResponse:
        """Values of the response tokens of each sequence."""
        return self._portal.call(partial(self._client.compute_values, request, timeout_s=timeout_s))

    def train(
        self,
        header: critic_pb2.TrainHeader,
        sequences: Iterable[critic_pb2.TrainSequence],
        *,
        timeout_s: float | None = None,
    ) -> critic_pb2.TrainResponse:
        """One optimizer step over the sequences, sent in parts under the message limit."""
        return self._portal.call(partial(self._client.train, header, sequences, timeout_s=timeout_s))

    def save_checkpoint(
        self, request: critic_pb2.SaveCheckpointRequest, *, timeout_s: float | None = None
    ) -> critic_pb2.SaveCheckpointResponse:
        """Writes a checkpoint under a tag."""
        return self._portal.call(partial(self._client.save_checkpoint, request, timeout_s=timeout_s))

    def load_checkpoint(
        self, request: critic_pb2.LoadCheckpointRequest, *, timeout_s: float | None = None
    ) -> critic_pb2.LoadCheckpointResponse:
        """Goes back to a tag."""
        return self._portal.call(partial(self._client.load_checkpoint, request, timeout_s=timeout_s))


class TrainerClient(_Blocking[trainer.TrainerClient]):
    """See `rlctl.clients.trainer`."""

    service = "trainer"
    kind = trainer.TrainerClient

    def get_status(self, *, timeout_s: float | None = None) -> trainer_pb2.GetStatusResponse:
        """How the run stands."""
        return self._portal.call(partial(self._client.get_status, timeout_s=timeout_s))

    def pause(self, *, timeout_s: float | None = None) -> trainer_pb2.PauseResponse:
        """Finishes the step in hand, then waits."""
        return self._portal.call(partial(self._client.pause, timeout_s=timeout_s))

    def resume(self, *, timeout_s: float | None = None) -> trainer_pb2.ResumeResponse:
        """Goes on after a pause."""
        return self._portal.call(partial(self._client.resume, timeout_s=timeout_s))

    def checkpoint(self, *, timeout_s: float | None = None) -> trainer_pb2.CheckpointResponse:
        """Commits a checkpoint; answers when it is on disk."""
        return self._portal.call(partial(self._client.checkpoint, timeout_s=timeout_s))

    def stop(self, *, timeout_s: float | None = None) -> trainer_pb2.StopResponse:
        """Finishes the step in hand, commits a checkpoint and ends."""
        return self._portal.call(partial(self._client.stop, timeout_s=timeout_s))


class EvaluatorClient(_Blocking[evaluator.EvaluatorClient]):
    """See `rlctl.clients.evaluator`."""

    service = "evaluator"
    kind = evaluator.EvaluatorClient

    def start_evaluation(
        self, request: evaluator_pb2.StartEvaluationRequest, *, timeout_s: float | None = None
    ) -> evaluator_pb2.StartEvaluationResponse:
        """Starts an evaluation; its `request_id` makes a repeat safe."""
        return self._portal.call(partial(self._client.start_evaluation, request, timeout_s=timeout_s))

    def watch_evaluation(
        self, evaluation_id: str, *, timeout_s: float | None = None
    ) -> Iterator[evaluator_pb2.WatchEvaluationResponse]:
        """Progress until the evaluation ends, or `timeout_s` is over."""
        return self._iterate(self._client.watch_evaluation(evaluation_id, timeout_s=timeout_s))

    def get_report(self, evaluation_id: str, *, timeout_s: float | None = None) -> evaluator_pb2.GetReportResponse:
        """The report of an ended evaluation."""
        return self._portal.call(partial(self._client.get_report, evaluation_id, timeout_s=timeout_s))

    def cancel_evaluation(
        self, evaluation_id: str, *, timeout_s: float | None = None
    ) -> evaluator_pb2.CancelEvaluationResponse:
        """Ends an evaluation."""
        return self._portal.call(partial(self._client.cancel_evaluation, evaluation_id, timeout_s=timeout_s))
