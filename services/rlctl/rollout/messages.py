"""From a task and what the services answered to the messages of a prompt group. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

from rlctl.bus.ids import group_key
from rlctl.core.errors import InternalError, UnavailableError
from rlctl.v1.generation_pb2 import FINISH_REASON_ABORT, GenerateRequest, GenerateResponse, Sample
from rlctl.v1.reward_pb2 import ItemScore, ScoreItem
from rlctl.v1.rollout_pb2 import PromptTask, RolloutGroup, RolloutSample
from rlctl.v1.tensor_pb2 import TokenFloats, TokenIds, TokenSequence


def generate_request(task: PromptTask) -> GenerateRequest:
    return GenerateRequest(
        request_id=group_key(task.id),
        tokens=TokenIds(ids=task.prompt_ids),
        sampling=task.sampling,
        return_logprobs=True,
    )


def check_samples(task: PromptTask, response: GenerateResponse) -> None:
    """Raises UnavailableError for aborted samples (worth another try), InternalError for a wrong number of them."""
    wanted = task.sampling.n if task.sampling.HasField("n") else 1
    if len(response.samples) != wanted:
        raise InternalError(f"{wanted} samples were asked for and {len(response.samples)} came back")
    if any(sample.finish_reason == FINISH_REASON_ABORT for sample in response.samples):
        raise UnavailableError("the generation service aborted the request")


def score_items(task: PromptTask, samples: Sequence[Sample]) -> list[ScoreItem]:
    return [
        ScoreItem(prompt=task.prompt, response=sample.text, label=task.label, metadata_json=task.metadata_json)
        for sample in samples
    ]


def sequences(task: PromptTask, samples: Sequence[Sample]) -> list[TokenSequence]:
    return [TokenSequence(prompt_ids=task.prompt_ids, response_ids=sample.token_ids) for sample in samples]


def sequence_bytes(sequence: TokenSequence) -> int:
    """What a sequence takes in the request or, where that is more, its log-probs in the answer."""
    return max(sequence.ByteSize(), 4 * len(sequence.response_ids)) + 16


def temperature(task: PromptTask) -> float:
    """The temperature of the log-probs: that of the sampling, 1 for greedy sampling (whose own is no distribution)."""
    return task.sampling.temperature if task.sampling.HasField("temperature") and task.sampling.temperature > 0 else 1.0


def scored_sample(sample: Sample, score: ItemScore, reference: TokenFloats | None) -> RolloutSample:
    scored = RolloutSample(
        sample=sample,
        reward_components=score.components,
        extra_logs=score.extra_logs,
        reference_logprobs=reference.values if reference is not None else (),
    )
    kind = score.WhichOneof("result")
    if kind == "reward":
        scored.reward = score.reward
    elif kind == "error":
        scored.reward_error = f"{score.error.reason}: {score.error.message}"
    else:
        scored.reward_error = "the reward service gave neither a reward nor an error"
    return scored


def failed_group(task: PromptTask, error: str, worker: str) -> RolloutGroup:
    """A group that could not be made; of its task only what names it, so that it is small."""
    return RolloutGroup(task=PromptTask(id=task.id, step=task.step), error=error[:10_000], worker=worker)
