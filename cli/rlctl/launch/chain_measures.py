"""What the report compares: each policy's responses to held-out prompts, their rewards, and their distance from SFT.

each policy ─► greedy and sampled responses ─► reward model and grader ─► samples' log-probs under the SFT model
                 generation service, then gone        reward service           reference service

Every answer is in a file as soon as it is there, so that the same command goes on wherever it was killed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlctl.clients.answers import AnswerFile, Row
from rlctl.core.errors import FailedPreconditionError
from rlctl.data.prompts import Prompt, load_prompts
from rlctl.launch.chain_numbers import Measured, measured
from rlctl.launch.chain_recipe import ChainRecipe, Trained
from rlctl.launch.loop_stages import Task, rewarded
from rlctl.launch.progress import Progress
from rlctl.launch.stage_services import generation_services, reference_service, reward_service
from rlctl.offline.asking import Question, Scored, answers_file, generate_all, rewards_file, score_all
from rlctl.offline.distance import compare_all
from rlctl.reference.config import ReferenceSettings
from rlctl.reward.config import RewardSettings
from rlctl.rpc.config import ChannelConfig
from rlctl.rpc.own import OwnService, alongside
from rlctl.rpc.portal import Portal
from rlctl.trainer.config import SamplingConfig
from rlctl.v1.generation_pb2 import GenerateRequest, SamplingParams
from rlctl.v1.tensor_pb2 import TokenIds

RESPONSE = "response"
GREEDY, SAMPLED = "greedy", "sampled"


@dataclass(frozen=True)
class _Asked:
    """One policy's prompts, answered in one way."""

    policy: str
    task: Task
    responses: AnswerFile


class Measures:
    """Of one chain."""

    def __init__(
        self, recipe: ChainRecipe, trained: Trained, folder: Path, portal: Portal, say: Callable[[str], None]
    ) -> None:
        """`folder` takes the answers; calls are made in `portal`. Raises what loading the prompts raises."""
        from rlctl.models.load import load_tokenizer

        self._recipe = recipe
        self._trained = trained
        self._folder = folder
        self._portal = portal
        self._say = say
        self._ppo = recipe.ppo_recipe(trained)
        self._on_gpus = self._ppo.cluster.device != "cpu"
        self._start_s = recipe.generation.start_timeout_s
        tokenizer = load_tokenizer(Path(trained.sft), recipe.generation.trust_remote_code)
        assert self._ppo.eval.data is not None
        self._prompts = load_prompts(self._ppo.eval.data, tokenizer).items

    def run(self, policies: Mapping[str, str]) -> list[Measured]:
        """Of each policy by its name; services run for what is missing alone. Raises what they raise."""
        asked = [one for name, model in policies.items() for one in self._answers(name, model)]
        rows = self._rewards(asked)
        ratios = self._distances([(one, rows[at]) for at, one in enumerate(asked) if one.task.what.endswith(SAMPLED)])
        return [measured(name, rows[2 * at], rows[2 * at + 1], ratios[name]) for at, name in enumerate(policies)]

    def _answers(self, policy: str, model: str) -> list[_Asked]:
        """Greedy ones, then samples."""
        asked = []
        for way, params in ways(self._ppo.sampling, self._recipe.samples).items():
            task = _task(f"{policy}, {way}", self._folder / policy / way, self._prompts, params, self._recipe.seed)
            task.folder.mkdir(parents=True, exist_ok=True)
            asked.append(_Asked(policy, task, answers_file(task.folder / "responses.jsonl", task.questions)))
        if any(one.responses.missing for one in asked):
            self._say(f"generation service: {model}")
            section, logs = self._recipe.generation, self._folder / "logs" / policy
            with generation_services(section, model, logs, on_gpus=self._on_gpus) as services:
                for one in asked:
                    if one.responses.missing:
                        self._generate(one, services)
        return asked

    def _generate(self, one: _Asked, services: Sequence[OwnService]) -> None:
        progress = Progress(f"{one.task.what}: answered", one.responses, self._say)
        work = generate_all(
            one.responses, one.task.questions, self._channel(services), column=RESPONSE, at_once=self._recipe.at_once,
            on_answer=progress.mark,
        )  # fmt: skip
        self._portal.call(alongside, work, services)
        progress.end()

    def _rewards(self, asked: Sequence[_Asked]) -> list[list[Row]]:
        """The scored responses of each."""
        responses = [_answered(one) for one in asked]
        files = [
            rewards_file(one.task.folder / "scored.jsonl", rows) for one, rows in zip(asked, responses, strict=True)
        ]
        if any(file.missing for file in files):
            settings = self._reward_settings()
            self._say(f"reward service: {self._trained.rm}")
            logs = self._folder / "logs"
            with reward_service(settings, logs, on_gpus=self._on_gpus, timeout_s=self._start_s) as service:
                for one, rows, file in zip(asked, responses, files, strict=True):
                    if file.missing:
                        self._score(one, rows, file, service)
        return [rewarded(one.task, file) for one, file in zip(asked, files, strict=True)]

    def _reward_settings(self) -> RewardSettings:
        """The reward that PPO had; the grader beside it counts for nothing in the sum."""
        scorers = [self._recipe.scorer(self._trained)]
        if any(prompt.label for prompt in self._prompts):
            scorers.append({"kind": "grader", "weight": 0.0})
        reward = self._ppo.reward
        return RewardSettings.model_validate(
            {"scorers": scorers, "threads": reward.threads, "trust_remote_code": reward.trust_remote_code}
        )

    def _score(self, one: _Asked, rows: list[Row], file: AnswerFile, service: OwnService) -> None:
        work = score_all(
            file, rows, one.task.scored, self._channel([service]), column=RESPONSE, at_once=self._recipe.at_once
        )
        self._portal.call(alongside, work, [service])

    def _distances(self, sampled: Sequence[tuple[_Asked, list[Row]]]) -> dict[str, list[float]]:
        """log pi(y) - log sft(y) of each sample, nats, by policy."""
        files = {one.policy: rewards_file(one.task.folder / "distance.jsonl", rows) for one, rows in sampled}
        if any(file.missing for file in files.values()):
            settings = ReferenceSettings(
                model=self._trained.sft,
                dtype=self._recipe.generation.dtype,
                threads=self._ppo.reference.threads,
                trust_remote_code=self._ppo.reference.trust_remote_code,
            )
            self._say(f"reference service: {self._trained.sft}")
            logs = self._folder / "logs"
            with reference_service(settings, logs, on_gpus=self._on_gpus, timeout_s=self._start_s) as service:
                for one, rows in sampled:
                    if files[one.policy].missing:
                        self._compare(one, rows, files[one.policy], service)
        return {policy: [row["log_ratio"] for row in file.finish()] for policy, file in files.items()}

    def _compare(self, one: _Asked, rows: list[Row], file: AnswerFile, service: OwnService) -> None:
        work = compare_all(
            file, rows, one.task.questions, self._channel([service]), temperature=self._ppo.sampling.temperature,
            at_once=self._recipe.at_once,
        )  # fmt: skip
        self._portal.call(alongside, work, [service])

    def _channel(self, services: Sequence[OwnService]) -> ChannelConfig:
        return ChannelConfig(addresses=[one.address for one in services], timeout_s=self._recipe.timeout_s)


def ways(sampling: SamplingConfig, samples: int) -> dict[str, SamplingParams]:
    """How each prompt is answered; responses end as those of PPO do."""
    greedy = SamplingParams(n=1, temperature=0.0, max_tokens=sampling.max_new_tokens, stop=sampling.stop)
    sampled = SamplingParams()
    sampled.CopyFrom(greedy)
    sampled.n, sampled.temperature = samples, sampling.temperature
    return {GREEDY: greedy, SAMPLED: sampled}


def _answered(one: _Asked) -> list[Row]:
    """The responses of all prompts. Raises FailedPreconditionError where the service refused one."""
    rows = one.responses.finish()
    refused = [row for row in rows if "error" in row]
    if refused:
        raise FailedPreconditionError(
            f"{one.task.what}: {len(refused)} of {len(rows)} prompts were refused: {refused[0]['error']}",
            reason="PROMPT_REFUSED",
        )
    return rows


def _task(what: str, folder: Path, prompts: Sequence[Prompt], params: SamplingParams, seed: int) -> Task:
    """The same seeds for every policy, so that they differ by their weights alone."""
    questions = []
    scored = {}
    for place, prompt in enumerate(prompts):
        sampling = SamplingParams()
        sampling.CopyFrom(params)
        sampling.seed = int.from_bytes(hashlib.sha256(f"{seed}/report/{place}".encode()).digest()[:6], "big")
        request = GenerateRequest(tokens=TokenIds(ids=prompt.prompt_ids), sampling=sampling, return_logprobs=True)
        question = Question(request, {"prompt": prompt.value, "label": prompt.label}, place=str(place))
        questions.append(question)
        scored[question.key] = Scored(prompt.text, prompt.label, prompt.metadata_json)
    return Task(what, folder, questions, scored)
