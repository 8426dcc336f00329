"""From a prompt of the data set to the task that goes on the prompts stream."""

from __future__ import annotations

from rlctl.data.cursor import Position
from rlctl.data.prompts import Prompt
from rlctl.trainer.config import TrainerConfig
from rlctl.v1 import generation_pb2, rollout_pb2


def make_task(config: TrainerConfig, step: int, position: Position, prompt: Prompt) -> rollout_pb2.PromptTask:
    """The first attempt at the prompt in this position."""
    sampling = config.sampling
    return rollout_pb2.PromptTask(
        id=rollout_pb2.GroupId(run=config.run, epoch=position.epoch, prompt=position.position, attempt=0),
        prompt_ids=prompt.prompt_ids,
        prompt=prompt.text,
        label=prompt.label,
        metadata_json=prompt.metadata_json,
        sampling=generation_pb2.SamplingParams(
            n=sampling.n,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            max_tokens=sampling.max_new_tokens,
            stop=sampling.stop,
            ignore_eos=sampling.ignore_eos,
        ),
        needs_reference=config.needs_reference,
        step=step,
    )


def reissued(task: rollout_pb2.PromptTask) -> rollout_pb2.PromptTask:
    """The next attempt: another id, so that the broker's memory of the old one does not swallow it."""
    again = rollout_pb2.PromptTask()
    again.CopyFrom(task)
    again.id.attempt += 1
    return again
