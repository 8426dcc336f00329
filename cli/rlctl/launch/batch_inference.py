"""`rlctl generate --input FILE --output FILE`: the prompts of a file, answered into another."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlctl.bus.config import BusConfig
from rlctl.clients.answers import KEY
from rlctl.clients.generation import text_request
from rlctl.core.errors import ConfigError
from rlctl.core.lock import only_writer
from rlctl.data.condition import with_target
from rlctl.data.config import DataConfig
from rlctl.data.filters import select_rows
from rlctl.data.rows import Row
from rlctl.data.template import plain_text, prompt_messages
from rlctl.launch.progress import Progress
from rlctl.offline.asking import Question, answers_file, generate_all
from rlctl.rpc.config import ChannelConfig
from rlctl.rpc.own import OwnService, alongside
from rlctl.v1.generation_pb2 import SamplingParams


@dataclass(frozen=True)
class Served:
    """Where the answers come from."""

    channel: ChannelConfig
    registry: BusConfig | None = None
    own: OwnService | None = None
    """The service, where it was started for the job."""


@dataclass(frozen=True)
class BatchJob:
    """What is asked, and where the answers go."""

    data: DataConfig
    output: Path
    column: str
    """Of the responses' texts."""
    sampling: SamplingParams
    model: str = ""
    """Whose answers these are: a file begun with one model is not gone on with another."""
    target_score: float | None = None
    """Score to write behind each prompt, for models of conditional SFT."""
    at_once: int = 64


@dataclass(frozen=True)
class BatchEnd:
    """What it came to."""

    prompts: int
    asked: int
    """Those that were not in the file before."""
    refused: int
    """Prompts that the service refused; their rows have `error`."""


def generate_file(job: BatchJob, serve: Callable[[ExitStack], Served], say: Callable[[str], None]) -> BatchEnd:
    """Answers what the output lacks; `serve` reaches or starts the service, and is called only if it is needed.

    Every answer is in the file as soon as it is there; at the end the file is in the input's order. Raises ConfigError
    where the file holds anything else, FailedPreconditionError while another process writes it, and what the calls
    raise.
    """
    questions, counts = read_questions(job)
    taken = ", ".join(f"{name} {count}" for name, count in counts.items() if count and name != "rows")
    say(f"{len(questions)} prompts of {counts['rows']} rows" + (f" ({taken})" if taken else ""))
    with only_writer(job.output, "wait for it, end it, or name another --output"):
        return _answer(job, questions, serve, say)


def _answer(
    job: BatchJob, questions: list[Question], serve: Callable[[ExitStack], Served], say: Callable[[str], None]
) -> BatchEnd:
    file = answers_file(job.output, questions)
    asked = len(file.missing)
    if asked:
        with ExitStack() as stack:
            served = serve(stack)
            progress = Progress("answered", file, say)
            work = generate_all(
                file,
                questions,
                served.channel,
                column=job.column,
                at_once=job.at_once,
                registry=served.registry,
                on_answer=progress.mark,
            )
            asyncio.run(alongside(work, [served.own] if served.own is not None else []))
            progress.end()
    rows = file.finish()
    return BatchEnd(len(questions), asked, len({row[KEY] for row in rows if "error" in row}))


def read_questions(job: BatchJob) -> tuple[list[Question], dict[str, int]]:
    """A question a row, in order, and what filters took. Raises ConfigError and NotFoundError."""
    data = job.data if job.target_score is None else with_target(job.data, job.target_score)
    counts: dict[str, int] = {}
    rows = select_rows(data, counts, lambda row: row.column(data.input_key, "--input-key"))[: data.max_samples]
    if not rows:
        raise ConfigError(f"{data.path} has no prompts ({counts['rows']} rows)")
    return [_question(job, data, row, place) for place, row in enumerate(rows)], counts


def _question(job: BatchJob, data: DataConfig, row: Row, place: int) -> Question:
    ours = {KEY, "sample", "finish", "error", job.column} & row.values.keys()
    if ours:
        raise ConfigError(
            f"{row.where} has a column {min(ours)!r}, which the answers have too: rename it"
            + (", or give another --output-key" if job.column in ours else "")
        )
    value = row.values[data.input_key]
    prompt: str | list[tuple[str, str]]
    if data.apply_chat_template:
        prompt = [_turn(message, row) for message in prompt_messages(data, value, row.where)]
    else:
        prompt = plain_text(data, value, row.where, "the prompt")
    sampling = SamplingParams()
    sampling.CopyFrom(job.sampling)
    if sampling.HasField("seed"):
        sampling.seed += place * max(sampling.n, 1)
    columns: dict[str, Any] = json.loads(json.dumps(row.values, default=str))
    return Question(text_request(prompt, sampling), columns, place=f"{job.model}/{place}")


def _turn(message: dict[str, Any], row: Row) -> tuple[str, str]:
    if not isinstance(message["content"], str):
        raise ConfigError(f"{row.where}: the content of a chat message must be text here")
    return message["role"], message["content"]
