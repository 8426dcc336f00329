"""What the flags of `train_ppo_ray` say together."""

from __future__ import annotations

import math
from typing import Any

from rlctl.algorithms.config import GROUP_ESTIMATORS
from rlctl.migrate.command_line import CommandLine
from rlctl.migrate.common import NO_LIMIT, data_sets, finish_learner, finish_run, template
from rlctl.migrate.draft import Draft
from rlctl.migrate.ppo import ACTOR, CRITIC


def finish(draft: Draft, line: CommandLine) -> None:
    """Fills in what is left after the table."""
    draft.set("cluster.device", "gpu")
    for path, value in {"kl.coef": 0.01, "sampling.n": 1, "generation.enforce_eager": False,
                        "generation.enable_prefix_caching": False, "advantage.estimator": "gae",
                        f"{ACTOR}.optimizer.lr": 1e-6, f"{CRITIC}.optimizer.lr": 9e-6}.items():  # fmt: skip
        if draft.get(path) is None:
            draft.set(path, value)
    finish_run(draft, line, "openrlhf_train_ppo")
    finish_learner(draft, line, ACTOR, CRITIC)
    _machines(draft, line)
    _lengths(draft, line)
    _data(draft, line)
    _batches(draft, line)
    _rewards(draft, line)
    _objectives(draft, line)
    _off_policy(draft, line)
    _pretraining(draft, line)
    _critic(draft, line)


def _machines(draft: Draft, line: CommandLine) -> None:
    def gpus(part: str) -> int:
        return line.integer(f"{part}_num_nodes", 1) * line.integer(f"{part}_num_gpus_per_node", 8)

    nodes = max(line.integer(f"{part}_num_nodes", 1) for part in ("actor", "critic", "ref", "reward"))
    if nodes > 1:
        draft.set("cluster.nodes", nodes)
        draft.set("cluster.gpus_per_node", line.integer("actor_num_gpus_per_node", 8))
    draft.set(f"{ACTOR}.ranks", gpus("actor"))
    draft.set(f"{CRITIC}.ranks", gpus("critic"))
    draft.set("reference.replicas", gpus("ref"))
    draft.set("reward.replicas", gpus("reward") if "reward_pretrain" in line.flags else 1)
    draft.set("generation.replicas", max(line.integer("vllm_num_engines", 1), 1))
    if line.integer("vllm_num_engines", 1) < 1:
        draft.drop(f"{line.written('vllm_num_engines')} 0", "generation is always a service: one replica is set")
    given = [name for name in ("all_models", "actor_ref", "critic_reward") if f"colocate_{name}" in line.flags]
    if given:
        draft.set("cluster.colocate", given[0].removesuffix("_models"))
    for name in given[1:]:
        flag = line.written(f"colocate_{name}")
        draft.drop(flag, f"included in colocate = {draft.get('cluster.colocate')!r}" if given[0] == "all_models"
                   else f"one pair shares GPUs: colocate is {given[0]!r}")  # fmt: skip
    if draft.get(f"{ACTOR}.zero_stage") == 3:
        draft.note(
            "the reference is replicated, not split: each of its replicas holds the whole model on one GPU; set "
            "reference.replicas to fewer where it does not fit beside others"
        )


def _lengths(draft: Draft, line: CommandLine) -> None:
    response = line.integer("generate_max_len", 1024)
    prompt = line.integer("prompt_max_len", 1024)
    if "max_len" in line.flags and "prompt_max_len" not in line.flags:
        total = line.integer("max_len", 2048)
        if "generate_max_len" not in line.flags:
            response = total // 2
            draft.note(
                f"{line.written('max_len')} {total} is shared out: {total - response} tokens of prompt, "
                f"{response} of response"
            )
        prompt = max(total - response, 1)
    draft.set("data.max_prompt_len", prompt)
    draft.set("sampling.max_new_tokens", response)
    draft.set("generation.max_model_len", prompt + response)


def _data(draft: Draft, line: CommandLine) -> None:
    settings: dict[str, Any] = {
        "input_key": line.text("input_key", "input"), "label_key": line.text("label_key"), **template(draft, line),
    }  # fmt: skip
    found = data_sets(line, "prompt_data", "prompt_data_probs", line.text("prompt_split", "train"), settings)
    limit = draft.get("data.max_prompt_len")
    draft.set("data", {**found[0], "max_prompt_len": limit} if len(found) == 1 else
              {"mixture": found, "max_prompt_len": limit})  # fmt: skip
    draft.set("data.seed", draft.get("seed"))
    every = line.integer("eval_steps", -1)
    if "eval_dataset" not in line.flags:
        for name in ("eval_split", "eval_temperature"):
            if name in line.flags:
                draft.drop(line.written(name), "there is no --eval_dataset")
        if every > 0:
            draft.drop(line.written("eval_steps"), "there is no --eval_dataset")
        return
    held_out = {"path": line.text("eval_dataset"), **settings, "max_prompt_len": limit}
    if line.text("eval_split", "train") != "train":
        held_out["split"] = line.text("eval_split")
    draft.set("eval.data", held_out)
    draft.set("eval.steps", max(every, 0))
    draft.set("eval.temperature", line.number("eval_temperature", 0.6))


def _batches(draft: Draft, line: CommandLine) -> None:
    prompts, n = line.integer("rollout_batch_size", 1024), draft.get("sampling.n")
    batch = line.integer("train_batch_size", 128)
    draft.set("sampling.prompts_per_step", prompts)
    draft.set("train.minibatches", max(round(prompts * n / batch), 1))
    if prompts * n % batch:
        draft.note(
            f"{prompts} prompts with {n} responses are no multiple of --train_batch_size {batch}: an optimizer step "
            f"has a share of 1/{draft.get('train.minibatches')} of them"
        )
    episodes = line.integer("num_episodes", 1)
    rows = line.integer("max_samples", NO_LIMIT)
    if 0 < rows < NO_LIMIT:
        draft.set("train.steps", max(math.ceil(episodes * rows / prompts), 1))
        draft.note(
            f"train.steps = {draft.get('train.steps')} is {episodes} x {rows} prompts / {prompts}; set fewer where the "
            "data is smaller"
        )
    else:
        draft.note(
            f"set train.steps to {episodes} x the prompts of the data / {prompts} (it is 100): steps are counted here, "
            "not episodes"
        )
    tokens = (draft.get("data.max_prompt_len") + draft.get("sampling.max_new_tokens")) * line.integer(
        "micro_train_batch_size", 4
    )
    if "use_dynamic_batch" in line.flags:
        tokens = line.integer("train_max_tokens_per_gpu", 16192)
    elif "train_max_tokens_per_gpu" in line.flags:
        draft.drop(line.written("train_max_tokens_per_gpu"), "does something only with --use_dynamic_batch")
    for root in (ACTOR, CRITIC):
        draft.set(f"{root}.micro_batch_tokens", tokens)


def _rewards(draft: Draft, line: CommandLine) -> None:
    scorers: list[dict[str, Any]] = []
    normalize = "normalize_reward" in line.flags
    for url in filter(None, line.text("remote_rm_url").split(",")):
        scorers.append({"kind": "http", "url": url} if "://" in url else {"kind": "function", "path": url})
    for model in filter(None, line.text("reward_pretrain").split(",") if not scorers else []):
        scorers.append({"kind": "model", "model": model, **({"normalize": True} if normalize else {})})
    if scorers and "remote_rm_url" in line.flags and "reward_pretrain" in line.flags:
        draft.drop(line.written("reward_pretrain"), "the rewards come from --remote_rm_url")
    if normalize and not any("normalize" in scorer for scorer in scorers):
        draft.drop(line.written("normalize_reward"), "only a reward model has a mean and deviation saved with it")
    if len(scorers) > 1:
        for number_of, scorer in enumerate(scorers, 1):
            scorer["name"] = f"reward-{number_of}"
    if scorers:
        draft.set("reward.scorers", scorers)
    else:
        draft.note("no reward is named: reward.scorers is the grader that compares with the label")


def _objectives(draft: Draft, line: CommandLine) -> None:
    if "eps_clip_low_high" in line.flags:
        low, high = line.flags["eps_clip_low_high"].numbers(2)
        draft.set("loss.clip_low", low)
        draft.set("loss.clip_high", high)
    if draft.get("loss.kind") == "gspo" and "eps_clip_low_high" not in line.flags and "eps_clip" not in line.flags:
        draft.set("loss.clip_low", 0.2)
        draft.set("loss.clip_high", 0.2)
    gamma = line.number("gamma", 1.0)
    if gamma != 1 and draft.get("advantage.estimator") in GROUP_ESTIMATORS:
        draft.drop(f"{line.written('gamma')} {gamma:g}", "this estimator compares whole responses: gamma is 1")
    elif gamma != 1:
        draft.set("advantage.gamma", gamma)
    if line.number("top_p", 1.0) < 1:
        draft.set("sampling.top_p", line.number("top_p", 1.0))
        draft.set("sampling.allow_biased", True)
        draft.note("top_p below 1 samples from another distribution than the one that is trained (allow_biased)")
    estimator = "k3" if "use_kl_estimator_k3" in line.flags else line.text("kl_estimator", "k1")
    if "use_kl_loss" in line.flags:
        draft.set("kl.as_loss", True)
        if estimator == "k1":
            estimator = "k2"
            draft.note("k1 has no gradient as a loss: kl.estimator is k2, whose gradient is that of the KL")
    draft.set("kl.estimator", estimator)


def _off_policy(draft: Draft, line: CommandLine) -> None:
    names = ("vllm_is_truncated_threshold", "vllm_is_correction_type", "use_icepop")
    if "enable_vllm_is_correction" not in line.flags:
        for name in names:
            if name in line.flags:
                draft.drop(line.written(name), "the correction is off (no --enable_vllm_is_correction)")
        return
    kind = "icepop" if "use_icepop" in line.flags else line.text("vllm_is_correction_type", "tis").replace("-", "_")
    draft.set("off_policy.kind", kind)
    band = line.flags[names[0]].values if names[0] in line.flags else []
    if len(band) == 2:
        low, high = line.flags[names[0]].numbers(2)
        if kind == "seq_mask_tis":
            draft.set("off_policy.seq_band", [low, high])
        else:
            draft.set("off_policy.low", low)
            draft.set("off_policy.high", high)
    elif band:
        draft.set("off_policy.high", line.flags[names[0]].number())


def _pretraining(draft: Draft, line: CommandLine) -> None:
    if "pretrain_data" not in line.flags:
        for name in ("ptx_coef", "pretrain_data_probs", "pretrain_split"):
            if name in line.flags:
                draft.drop(line.written(name), "there is no --pretrain_data")
        return
    settings = {
        "input_key": line.text("input_key", "input"),
        "pretrain": True,
        "max_len": draft.get("generation.max_model_len"),
    }
    split = line.text("pretrain_split", "train")
    draft.set("ptx.data", data_sets(line, "pretrain_data", "pretrain_data_probs", split, settings))
    draft.set("ptx.coef", line.number("ptx_coef", 0.05))
    draft.set("ptx.batch_size", line.integer("train_batch_size", 128))


def _critic(draft: Draft, line: CommandLine) -> None:
    if draft.get("advantage.estimator") == "gae":
        first = line.text("reward_pretrain").split(",")[0] if "remote_rm_url" not in line.flags else ""
        model = line.text("critic_pretrain", first)
        if model:
            draft.set("critic.model", model)
        if draft.get("critic.value_clip") is None:
            draft.set("critic.value_clip", 0.5)
        return
    draft.remove("critic")
    if draft.get("train.freezing_actor_steps"):
        draft.drop(line.written("freezing_actor_steps"), "there is no critic to warm up")
    draft.remove("train.freezing_actor_steps")
    for name, flag in line.flags.items():
        if name.startswith("critic_") or name == "value_clip":
            draft.drop(flag.written, f"estimator {draft.get('advantage.estimator')!r} has no critic")
