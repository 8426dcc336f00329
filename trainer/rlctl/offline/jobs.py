"""What each job is made of: its items, its model, and its objective."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlctl.data.process import reward_tokens
from rlctl.learner.config import LearnerConfig
from rlctl.learner.learner import Learner
from rlctl.models.load import load_causal_lm, load_tokenizer, load_value_model
from rlctl.models.source import resolve
from rlctl.offline import dpo, kd, kto, prm, rm, sft
from rlctl.offline.config import (
    DPOConfig,
    Job,
    KDConfig,
    KTOConfig,
    OfflineConfig,
    PRMConfig,
    RMConfig,
    SFTConfig,
)
from rlctl.offline.objective import Item, Objective
from rlctl.offline.reference import Reference
from rlctl.offline.served_teacher import ServedTeacher
from rlctl.offline.teacher import LocalTeacher, Teacher, check_tokenizers


@dataclass(frozen=True)
class Place:
    """Where an objective is built: the folder of the first weights, their tokenizer, and the schedule's length."""

    folder: Path
    tokenizer: PreTrainedTokenizerBase
    steps: int


@dataclass(frozen=True)
class Parts:
    """How a job is put together."""

    to_items: Callable[[Sequence[Any]], list[Item]]
    build: Callable[[Any, Place], Objective]
    """(settings of the job, place) -> the objective around its learner."""


def _each(to_item: Callable[[Any], Item]) -> Callable[[Sequence[Any]], list[Item]]:
    return lambda examples: [to_item(example) for example in examples]


def _sft(config: SFTConfig, place: Place) -> Objective:
    return sft.SFTObjective(_policy_learner(config, place, forward=sft.GreedyForward))


def _rm(config: RMConfig, place: Place) -> Objective:
    settings = config.learner
    model = load_value_model(
        place.folder,
        settings.dtype,
        settings.attention,
        seed=config.seed,
        trust_remote_code=settings.trust_remote_code,
    )
    rm.choose_pad(place.tokenizer, model)
    return rm.RMObjective(Learner(model, settings, total_steps=place.steps, value=True, seed=config.seed))


def _dpo(config: DPOConfig, place: Place) -> Objective:
    return dpo.DPOObjective(_policy_learner(config, place), config, _reference(config, place))


def _kto(config: KTOConfig, place: Place) -> Objective:
    return kto.KTOObjective(_policy_learner(config, place), config, _reference(config, place))


def _kd(config: KDConfig, place: Place) -> Objective:
    teacher = _teacher(config, place)
    try:
        learner = _policy_learner(config, place, forward=partial(kd.DistillForward, teacher=teacher))
    except BaseException:
        teacher.close()
        raise
    return kd.KDObjective(learner, config.alpha, teacher)


def _teacher(config: KDConfig, place: Place) -> Teacher:
    if config.teacher_service is not None:
        return ServedTeacher(config.teacher_service, place.tokenizer)
    assert config.teacher is not None
    folder = resolve(config.teacher)
    check_tokenizers(place.tokenizer, load_tokenizer(folder, config.learner.trust_remote_code))
    return LocalTeacher(_load(folder, config.learner))


def _prm(config: PRMConfig, place: Place) -> Objective:
    tokens = reward_tokens(config.data[0], place.tokenizer)
    learner = _policy_learner(config, place, forward=partial(prm.RewardForward, tokens=tokens))
    return prm.PRMObjective(learner, soft=config.soft_labels)


def _reference(config: DPOConfig | KTOConfig, place: Place) -> Reference:
    return Reference(config.reference, str(place.folder), config.learner, config.run_dir)


def _policy_learner(config: OfflineConfig, place: Place, **more: Any) -> Learner:
    model = _load(place.folder, config.learner)
    return Learner(model, config.learner, total_steps=place.steps, seed=config.seed, **more)


def _load(folder: Path, settings: LearnerConfig) -> PreTrainedModel:
    return load_causal_lm(folder, settings.dtype, settings.attention, trust_remote_code=settings.trust_remote_code)


PARTS: dict[Job, Parts] = {
    "sft": Parts(_each(sft.to_item), _sft),
    "rm": Parts(_each(rm.to_item), _rm),
    "dpo": Parts(_each(dpo.to_item), _dpo),
    "kto": Parts(kto.to_items, _kto),
    "kd": Parts(_each(sft.to_item), _kd),
    "prm": Parts(_each(prm.to_item), _prm),
}
