"""Responses of a generation service to prompts, and their rewards from a reward service, kept in files."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlctl.bus.config import BusConfig
from rlctl.clients.answers import KEY, AnswerFile, Row, answer
from rlctl.clients.generation import GenerationClient
from rlctl.clients.reward import RewardClient, check_reached
from rlctl.core.errors import InvalidArgumentError, UnavailableError
from rlctl.rpc.config import ChannelConfig
from rlctl.rpc.pool import Pool
from rlctl.v1 import generation_pb2, reward_pb2

#: How a response ended.
FINISH = {generation_pb2.FINISH_REASON_STOP: "stop", generation_pb2.FINISH_REASON_LENGTH: "length"}


@dataclass(frozen=True)
class Question:
    """A prompt to be answered, `request.sampling.n` times."""

    request: generation_pb2.GenerateRequest
    columns: Row
    """Written into each of its rows."""
    place: str = ""
    """Tells two questions apart that ask the same."""

    @property
    def samples(self) -> int:
        return self.request.sampling.n if self.request.sampling.HasField("n") else 1

    @property
    def key(self) -> str:
        """The same for the same prompt, sampling and place."""
        told = self.request.SerializeToString(deterministic=True)
        return hashlib.sha256(self.place.encode() + b"\0" + told).hexdigest()[:20]


@dataclass(frozen=True)
class Scored:
    """What the reward of a question's responses needs."""

    prompt: str
    label: str
    metadata_json: str


def answers_file(path: Path, questions: Sequence[Question]) -> AnswerFile:
    """The file of the questions' responses, with those that are in it already. Raises ConfigError."""
    return AnswerFile(path, {question.key: question.samples for question in questions})


async def generate_all(
    file: AnswerFile,
    questions: Sequence[Question],
    channel: ChannelConfig,
    *,
    column: str,
    at_once: int,
    registry: BusConfig | None = None,
    on_answer: Callable[[], None] = lambda: None,
) -> list[Row]:
    """Generates what the file lacks: a row a sample, with the question's columns, `sample`, the text in `column`,
    and `finish` (`stop` or `length`); with `token_ids` and their `logprobs` where the request asks for log-probs.

    A prompt that the service refuses (too long for its context) has empty texts and the reason in `error`.
    """
    known = {question.key: question for question in questions}

    async def work(pool: Pool) -> list[Row]:
        client = GenerationClient(pool)

        async def ask(key: str) -> list[Row]:
            return await _responses(client, known[key], column, channel.timeout_s)

        return await answer(file, ask, at_once=at_once, on_answer=on_answer)

    return await with_pool("generation", channel, registry, work)


async def _responses(client: GenerationClient, question: Question, column: str, timeout_s: float) -> list[Row]:
    columns = question.columns
    try:
        response = await client.generate(question.request, timeout_s=timeout_s)
    except InvalidArgumentError as error:
        told = {column: "", "finish": "", "error": error.message}
        return [{**columns, "sample": sample, **told} for sample in range(question.samples)]
    if any(sample.finish_reason not in FINISH for sample in response.samples):
        raise UnavailableError("the generation service aborted a request")
    rows = [
        {**columns, "sample": index, column: sample.text, "finish": FINISH[sample.finish_reason]}
        for index, sample in enumerate(response.samples)
    ]
    if question.request.return_logprobs:
        for row, sample in zip(rows, response.samples, strict=True):
            row |= {"token_ids": list(sample.token_ids), "logprobs": list(sample.logprobs)}
    return rows


def by_key(responses: Sequence[Row]) -> dict[str, list[Row]]:
    """The samples of each question."""
    groups: dict[str, list[Row]] = {}
    for row in responses:
        groups.setdefault(row[KEY], []).append(row)
    return groups


def rewards_file(path: Path, responses: Sequence[Row]) -> AnswerFile:
    """The file of the responses' rewards, with those that are in it already. Raises ConfigError."""
    return AnswerFile(path, {key: len(rows) for key, rows in by_key(responses).items()})


async def score_all(
    file: AnswerFile,
    responses: Sequence[Row],
    scored: Mapping[str, Scored],
    channel: ChannelConfig,
    *,
    column: str,
    at_once: int,
    on_answer: Callable[[], None] = lambda: None,
) -> list[Row]:
    """The rows with their `reward`, or with the reason why there is none in `reward_error`; with `components` where
    the reward has several sources.

    `scored` tells what the reward is asked with, by question. All samples of a prompt go in one call.
    """
    groups = by_key(responses)

    async def work(pool: Pool) -> list[Row]:
        client = RewardClient(pool)

        async def ask(key: str) -> list[Row]:
            rows = groups[key]
            items = [_item(scored[key], row[column]) for row in rows]
            response = await client.score(reward_pb2.ScoreRequest(items=items), timeout_s=channel.timeout_s)
            check_reached(response.scores)
            return [{**row, **_reward(score)} for row, score in zip(rows, response.scores, strict=True)]

        return await answer(file, ask, at_once=at_once, on_answer=on_answer)

    return await with_pool("reward", channel, None, work)


def _item(scored: Scored, response: str) -> reward_pb2.ScoreItem:
    return reward_pb2.ScoreItem(
        prompt=scored.prompt, response=response, label=scored.label, metadata_json=scored.metadata_json
    )


def _reward(score: reward_pb2.ItemScore) -> Row:
    if score.HasField("error"):
        return {"reward": None, "reward_error": f"{score.error.reason}: {score.error.message}"}
    told: Row = {"reward": score.reward}
    if len(score.components) > 1:
        told["components"] = dict(score.components)
    return told


async def with_pool(
    service: str, channel: ChannelConfig, registry: BusConfig | None, work: Callable[[Pool], Awaitable[Any]]
) -> Any:
    """`work` with the replicas at the channel's addresses, else with those in the registry."""
    if channel.addresses or registry is None:
        async with Pool(service, channel) as pool:
            return await work(pool)
    from rlctl.bus.bus import Bus
    from rlctl.bus.registry import Registry

    bus = await Bus.connect(registry, f"{service}-client")
    try:
        async with Pool(service, channel, Registry(bus)) as pool:
            return await work(pool)
    finally:
        await bus.close()
