"""The stages of a round that need services: responses from a generation service of its policy, then their rewards."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlctl.clients.answers import AnswerFile, Row
from rlctl.core.errors import FailedPreconditionError
from rlctl.data.condition import with_target
from rlctl.data.config import DataConfig
from rlctl.data.cursor import PromptCursor
from rlctl.data.prompts import Prompt, load_prompts
from rlctl.launch.loop_recipe import Loop, RejectionSamplingRecipe
from rlctl.launch.progress import Progress
from rlctl.launch.stage_services import generation_services, reward_service
from rlctl.offline.asking import Question, Scored, answers_file, generate_all, rewards_file, score_all
from rlctl.rpc.config import ChannelConfig
from rlctl.rpc.own import OwnService, alongside
from rlctl.rpc.portal import Portal
from rlctl.v1.generation_pb2 import GenerateRequest, SamplingParams
from rlctl.v1.tensor_pb2 import TokenIds

RESPONSE = "response"


@dataclass(frozen=True)
class Task:
    """Prompts to answer with one policy."""

    what: str
    folder: Path
    questions: list[Question]
    scored: dict[str, Scored]
    """What the reward is asked with, by question."""


class Stages:
    """Of one run."""

    def __init__(self, recipe: Loop, folder: Path, model: str, portal: Portal, say: Callable[[str], None]) -> None:
        """`model` has the tokenizer; calls are made in `portal`. Raises what loading the prompts raises."""
        from rlctl.models.load import load_tokenizer

        self._recipe = recipe
        self._folder = folder
        self._portal = portal
        self._say = say
        tokenizer = load_tokenizer(Path(model), recipe.generation.trust_remote_code)
        self._prompts = load_prompts(recipe.prompts, tokenizer, recipe.eval_prompts).items
        self._held_out = load_prompts(recipe.eval_prompts, tokenizer).items if recipe.eval_prompts is not None else []
        self._target = recipe.target_score if isinstance(recipe, RejectionSamplingRecipe) else None
        self._targeted: dict[str, Prompt] = {}
        if self._target is not None:
            sets = [recipe.prompts, *([recipe.eval_prompts] if recipe.eval_prompts is not None else [])]
            self._targeted = _targeted(sets, self._target, tokenizer)
        size = len(self._prompts)
        count = min(recipe.prompts_per_round or size, size)
        cursor = PromptCursor(size, recipe.prompts_per_round is not None, recipe.seed)
        self._rounds = [[each.index for each in cursor.take(count)] for _ in range(recipe.rounds)]
        say(f"{size} prompts, {count} of them a round; {len(self._held_out)} held out")

    def round(self, number: int) -> Task:
        """The prompts of a round."""
        recipe, sampling = self._recipe, self._recipe.sampling
        params = SamplingParams(
            n=sampling.n, temperature=sampling.temperature, top_p=sampling.top_p, max_tokens=sampling.max_new_tokens
        )
        prompts = [self._prompts[index] for index in self._rounds[number - 1]]
        what = f"round {number} of {recipe.rounds}"
        # The first policy knows nothing of scores in prompts.
        return self._task(what, f"round-{number:02d}", prompts, params, targeted=number > 1)

    def held_out(self, done: int) -> Task:
        """The held-out prompts after so many rounds, to be answered greedily."""
        params = SamplingParams(n=1, temperature=0.0, max_tokens=self._recipe.sampling.max_new_tokens)
        what = f"held-out prompts after {done} rounds"
        return self._task(what, f"held-out/after-{done:02d}", self._held_out, params, targeted=done > 0)

    def run(self, policy: str, tasks: Mapping[str, Task]) -> dict[str, list[Row]]:
        """The scored responses of all tasks; services run for what is missing alone."""
        for task in tasks.values():
            task.folder.mkdir(parents=True, exist_ok=True)
        files = {name: answers_file(task.folder / "responses.jsonl", task.questions) for name, task in tasks.items()}
        if any(file.missing for file in files.values()):
            with self._generation(policy) as services:
                for name, file in files.items():
                    if file.missing:
                        self._generate(tasks[name], file, services)
        responses = {name: file.finish() for name, file in files.items()}
        rewards = {name: rewards_file(tasks[name].folder / "scored.jsonl", rows) for name, rows in responses.items()}
        if any(file.missing for file in rewards.values()):
            with self._reward() as (channel, services):
                for name, file in rewards.items():
                    if file.missing:
                        self._score(tasks[name], file, responses[name], channel, services)
        return {name: rewarded(tasks[name], file) for name, file in rewards.items()}

    def _task(
        self, what: str, folder: str, prompts: Sequence[Prompt], params: SamplingParams, *, targeted: bool
    ) -> Task:
        questions = []
        scored = {}
        for place, prompt in enumerate(prompts):
            asked = self._targeted[_value_key(prompt)] if targeted and self._targeted else prompt
            sampling = SamplingParams()
            sampling.CopyFrom(params)
            sampling.seed = _seed(self._recipe.seed, folder, place)
            request = GenerateRequest(tokens=TokenIds(ids=asked.prompt_ids), sampling=sampling)
            question = Question(request, {"prompt": prompt.value, "label": prompt.label}, place=f"{folder}/{place}")
            questions.append(question)
            scored[question.key] = Scored(prompt.text, prompt.label, prompt.metadata_json)
        return Task(what, self._folder / folder, questions, scored)

    def _generate(self, task: Task, file: AnswerFile, services: Sequence[OwnService]) -> None:
        sampling = self._recipe.sampling
        channel = ChannelConfig(addresses=[one.address for one in services], timeout_s=sampling.timeout_s)
        progress = Progress(f"{task.what}: answered", file, self._say)
        work = generate_all(
            file, task.questions, channel, column=RESPONSE, at_once=sampling.at_once, on_answer=progress.mark
        )
        self._portal.call(alongside, work, services)
        progress.end()

    def _score(
        self,
        task: Task,
        file: AnswerFile,
        responses: list[Row],
        channel: ChannelConfig,
        services: Sequence[OwnService],
    ) -> None:
        progress = Progress(f"{task.what}: scored", file, self._say)
        work = score_all(
            file, responses, task.scored, channel, column=RESPONSE, at_once=self._recipe.sampling.at_once,
            on_answer=progress.mark,
        )  # fmt: skip
        self._portal.call(alongside, work, services)
        progress.end()

    @contextmanager
    def _generation(self, policy: str) -> Iterator[list[OwnService]]:
        """Services of a policy that serve."""
        self._say(f"generation service: {policy}")
        logs, on_gpus = self._folder / "logs", self._recipe.cluster.device != "cpu"
        with generation_services(self._recipe.generation, policy, logs, on_gpus=on_gpus) as services:
            yield services

    @contextmanager
    def _reward(self) -> Iterator[tuple[ChannelConfig, list[OwnService]]]:
        """How to reach rewards, and the service where it is ours."""
        section = self._recipe.reward
        if section.addresses:
            yield ChannelConfig(addresses=section.addresses, timeout_s=section.timeout_s), []
            return
        logs, on_gpus = self._folder / "logs", self._recipe.cluster.device != "cpu"
        starting_s = self._recipe.generation.start_timeout_s
        with reward_service(section, logs, on_gpus=on_gpus, timeout_s=starting_s) as service:
            yield ChannelConfig(addresses=[service.address], timeout_s=section.timeout_s), [service]


def rewarded(task: Task, file: AnswerFile) -> list[Row]:
    """The scored rows, of which some have a reward. Else the file goes, or the next launch would take it as done."""
    rows = file.finish()
    if all(row["reward"] is None for row in rows):
        file.path.unlink()
        raise FailedPreconditionError(
            f"{task.what}: none of {len(rows)} responses got a reward: {rows[0]['reward_error']}", reason="NO_REWARD"
        )
    return rows


def _targeted(sets: Sequence[DataConfig], target: float, tokenizer: Any) -> dict[str, Prompt]:
    """The prompts with the score to ask for, by the prompt as its row has it."""
    loaded = [load_prompts(with_target(each, target), tokenizer) for each in sets]
    return {_value_key(prompt): prompt for prompts in loaded for prompt in prompts}


def _value_key(prompt: Prompt) -> str:
    return json.dumps(prompt.value, sort_keys=True)


def _seed(seed: int, folder: str, place: int) -> int:
    """Of the samples of a prompt: another for every prompt of every round."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{folder}/{place}".encode()).digest()[:6], "big")
