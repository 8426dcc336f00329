"""Held-out evaluation: greedy answers by the generation service, judged by the reward service."""

from __future__ import annotations

import asyncio
import logging
import uuid

from rlctl.clients.generation import GenerationClient
from rlctl.clients.reward import RewardClient, check_reached
from rlctl.core.errors import FutileError, RlctlError, UnavailableError
from rlctl.data.prompts import Prompt, PromptDataset
from rlctl.trainer.config import TrainingSettings
from rlctl.v1 import generation_pb2, reward_pb2, tensor_pb2

logger = logging.getLogger(__name__)

#: Prompts asked for at once, and items of one Score call.
CONCURRENCY = 256
#: Seconds between tries of a remote reward that cannot be reached.
PAUSE_S = 5.0


async def evaluate(
    generation: GenerationClient, reward: RewardClient, prompts: PromptDataset, settings: TrainingSettings
) -> dict[str, float]:
    """`accuracy` (share of responses with a reward above `eval.correct_above`), `reward`, `length`, `n`, `failed`.

    A prompt that cannot be answered or scored counts in `failed`, not in `n`; a remote reward that cannot be reached
    is waited for, as long as the caller waits. Raises the error when all fail.
    """
    gate = asyncio.Semaphore(CONCURRENCY)

    async def answer(prompt: Prompt) -> generation_pb2.Sample | RlctlError:
        async with gate:
            try:
                response = await generation.generate(_request(prompt, settings))
            except RlctlError as error:
                return error
            return response.samples[0]

    every = [prompts[index] for index in range(len(prompts))]
    answers = await asyncio.gather(*(answer(prompt) for prompt in every))
    good = [
        (prompt, sample)
        for prompt, sample in zip(every, answers, strict=True)
        if isinstance(sample, generation_pb2.Sample)
    ]
    if not good:
        raise next(error for error in answers if isinstance(error, RlctlError))
    scores: list[reward_pb2.ItemScore] = []
    for begin in range(0, len(good), CONCURRENCY):
        items = [_item(prompt, sample) for prompt, sample in good[begin : begin + CONCURRENCY]]
        scores.extend(await _scores(reward, items))
    rewards = [score.reward for score in scores if score.WhichOneof("result") == "reward"]
    if not rewards:
        raise FutileError(
            f"none of {len(scores)} held-out answers could be scored: {scores[0].error.message}. Mend the reward and "
            "launch again.",
            reason="EVALUATION_FAILED",
        )
    return {
        "accuracy": sum(value > settings.eval.correct_above for value in rewards) / len(rewards),
        "reward": sum(rewards) / len(rewards),
        "length": sum(len(sample.token_ids) for _, sample in good) / len(good),
        "n": float(len(rewards)),
        "failed": float(len(every) - len(rewards)),
    }


async def _scores(reward: RewardClient, items: list[reward_pb2.ScoreItem]) -> list[reward_pb2.ItemScore]:
    while True:
        response = await reward.score(reward_pb2.ScoreRequest(request_id=uuid.uuid4().hex, items=items))
        try:
            check_reached(response.scores)
        except UnavailableError as error:
            logger.warning("the evaluation waits for the reward: %s", error.message)
            await asyncio.sleep(PAUSE_S)
            continue
        return list(response.scores)


def _request(prompt: Prompt, settings: TrainingSettings) -> generation_pb2.GenerateRequest:
    return generation_pb2.GenerateRequest(
        tokens=tensor_pb2.TokenIds(ids=prompt.prompt_ids),
        sampling=generation_pb2.SamplingParams(
            temperature=settings.eval.temperature,
            max_tokens=settings.eval.max_new_tokens or settings.sampling.max_new_tokens,
            stop=settings.sampling.stop,
        ),
    )


def _item(prompt: Prompt, sample: generation_pb2.Sample) -> reward_pb2.ScoreItem:
    return reward_pb2.ScoreItem(
        prompt=prompt.text, response=sample.text, label=prompt.label, metadata_json=prompt.metadata_json
    )
