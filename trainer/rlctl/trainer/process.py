"""A trainer process: one rank of the learner; rank 0 is also the coordinator."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from rlctl.core.durable import fsync_tree
from rlctl.data.prompts import PromptDataset, load_prompts
from rlctl.data.template import tokenizer_to_save
from rlctl.learner.learner import Learner
from rlctl.models.load import load_causal_lm, load_tokenizer
from rlctl.models.source import resolve
from rlctl.rpc.portal import Portal
from rlctl.trainer.checkpoint import CheckpointStore
from rlctl.trainer.commit import LOAD, SAVE, Commits
from rlctl.trainer.config import TrainerConfig
from rlctl.trainer.journal import Journal
from rlctl.trainer.ppo import Coordinator
from rlctl.trainer.progress import Progress
from rlctl.trainer.ptx import PretrainMix
from rlctl.trainer.ranks import Ranks
from rlctl.trainer.replay import check_complete, replay
from rlctl.trainer.servicer import TrainerServicer
from rlctl.trainer.services import ReplayServices, Services
from rlctl.trainer.status import Controls, Status
from rlctl.trainer.step import EXPORT_MODEL, UPDATE
from rlctl.trainer.sync import CANARY, EXPORT, PolicySync, canary_logprobs
from rlctl.trainer.update import Updater
from rlctl.trainer.versions import PolicyVersions


def run_rank(config: TrainerConfig) -> None:
    """Runs this process's rank until the run is done or was asked to stop."""
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    torch.manual_seed(config.seed)
    folder = resolve(config.model)
    tokenizer = load_tokenizer(folder)
    prompts = load_prompts(config.data, tokenizer, config.eval.data)
    ptx = None if config.ptx is None else PretrainMix(config.ptx, tokenizer, config.seed)
    learner = _learner(config, folder)
    ranks = Ranks(rank, world_size)
    _register(config, ranks, learner, tokenizer, list(prompts[0].prompt_ids), ptx)
    if rank:
        # Rank 0 says when it is over; a signal to the whole group must not tear a collective operation.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        ranks.register(UPDATE, Updater(config, learner, rank, world_size, None, ptx).step)
        ranks.follow()
        return
    with Portal() as portal:
        coordinate = _replay if config.replay_only else _train
        coordinate(config, portal, ranks, learner, prompts, tokenizer, ptx)
        ranks.end()


def _learner(config: TrainerConfig, folder: Path) -> Learner:
    model = load_causal_lm(
        folder, config.actor.dtype, config.actor.attention, trust_remote_code=config.actor.trust_remote_code
    )
    steps = config.train.steps * config.train.passes * config.train.minibatches
    return Learner(model, config.actor, total_steps=steps)


def _register(
    config: TrainerConfig,
    ranks: Ranks,
    learner: Learner,
    tokenizer: PreTrainedTokenizerBase,
    prompt_ids: list[int],
    ptx: PretrainMix | None,
) -> None:
    """The commands that need the learner alone."""
    saved = tokenizer_to_save(config.data.parts, tokenizer)

    def export(_payload: bytes) -> Iterator[tuple[str, torch.Tensor]] | None:
        if ranks.rank == 0:
            return learner.export_weights()
        for _ in learner.export_weights():
            pass
        return None

    def export_model(_payload: bytes) -> None:
        final = (config.run_dir / "replay" if config.replay_only else config.run_dir) / "model"
        aside = final.with_name("model.tmp")
        if ranks.rank == 0:
            shutil.rmtree(aside, ignore_errors=True)
        learner.save_hf(aside, saved)
        if ranks.rank == 0:
            fsync_tree(aside)
            shutil.rmtree(final, ignore_errors=True)
            aside.rename(final)

    def save(payload: bytes) -> None:
        learner.save(Path(payload.decode()))
        if ptx is not None and ranks.rank == 0:
            ptx.save(Path(payload.decode()))

    def load(payload: bytes) -> None:
        learner.load(Path(payload.decode()))
        if ptx is not None:
            ptx.load(Path(payload.decode()))

    ranks.register(EXPORT, export)
    ranks.register(EXPORT_MODEL, export_model)
    ranks.register(CANARY, lambda _payload: canary_logprobs(learner, prompt_ids))
    ranks.register(SAVE, save)
    ranks.register(LOAD, load)


def _train(
    config: TrainerConfig,
    portal: Portal,
    ranks: Ranks,
    learner: Learner,
    prompts: PromptDataset,
    tokenizer: PreTrainedTokenizerBase,
    ptx: PretrainMix | None,
) -> None:
    controls = Controls()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: controls.stop.set())
    held_out = None
    if config.eval.data is not None:
        held_out = load_prompts(config.eval.data, tokenizer)
    store = CheckpointStore(config.run_dir / "checkpoints")
    services = Services(config, portal, held_out, store.fence)
    try:
        progress = Progress(prompts.cursor(config.data.shuffle, config.data.seed), config.kl.coef)
        journal = Journal(config.run_dir / "journal")
        status = Status(config.run, config.train.steps, progress)
        services.serve(TrainerServicer(status, controls, store))
        services.wait_for_critic()
        commits = Commits(config, ranks, store, journal, services.critic, services.fence)
        ranks.register(UPDATE, Updater(config, learner, 0, ranks.world_size, services.critic, ptx).step)
        commits.restore(progress)
        services.open_stage(journal, progress, prompts)
        versions = PolicyVersions(config.run_dir / "policy_versions.json")
        services.sync = PolicySync(
            config, portal, services.registry, learner, ranks, versions, services.fence, list(prompts[0].prompt_ids)
        )
        Coordinator(config, ranks, services, commits, progress, status, controls).run()
    finally:
        services.close()


def _replay(
    config: TrainerConfig,
    portal: Portal,
    ranks: Ranks,
    learner: Learner,
    prompts: PromptDataset,
    tokenizer: PreTrainedTokenizerBase,
    ptx: PretrainMix | None,
) -> None:
    services = ReplayServices(config, portal)
    journal = Journal(config.run_dir / "journal")
    check_complete(journal)
    progress = Progress(prompts.cursor(config.data.shuffle, config.data.seed), config.kl.coef)
    store = CheckpointStore(config.run_dir / "replay" / "checkpoints")
    commits = Commits(config, ranks, store, journal, services.critic, services.fence)
    ranks.register(UPDATE, Updater(config, learner, 0, ranks.world_size, services.critic, ptx).step)
    commits.restore(progress)
    replay(config, ranks, commits, progress)
    services.close()
