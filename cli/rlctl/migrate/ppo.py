"""The flags of `train_ppo_ray`."""

from __future__ import annotations

from rlctl.algorithms.config import GROUP_ESTIMATORS
from rlctl.migrate.common import MUON, learner_table
from rlctl.migrate.rules import (
    Table,
    choice,
    dropped,
    dropped_unless,
    integer,
    number,
    on,
    pair,
    steps,
    text,
    together,
)

ACTOR, CRITIC = "actor", "critic.learner"
_SLEEP = 'engines do not sleep here: with colocate = "all" lower generation.gpu_memory_utilization'

TABLE: Table = {
    **learner_table(ACTOR, CRITIC),
    # Of one of the two learners only.
    **{f"{part}_{name}": rule for part, root in (("actor", ACTOR), ("critic", CRITIC)) for name, rule in {
        "learning_rate": number(f"{root}.optimizer.lr"),
        "adam_betas": pair(f"{root}.optimizer.betas"),
        "adam_eps": number(f"{root}.optimizer.eps"),
        "adam_weight_decay": number(f"{root}.optimizer.weight_decay"),
        "max_norm": number(f"{root}.optimizer.max_grad_norm"),
        "lr_warmup_ratio": number(f"{root}.optimizer.warmup_ratio"),
        "min_lr_ratio": number(f"{root}.optimizer.min_lr_ratio"),
        "lr_scheduler": learner_table(root)["lr_scheduler"],
        "optim": dropped_unless("adam", "AdamW is the optimizer"),
        **{f"muon_{muon}": dropped("AdamW is the optimizer") for muon in MUON},
    }.items()},
    # Machines.
    **{f"{part}_{size}": together for part in ("actor", "critic", "ref", "reward")
       for size in ("num_nodes", "num_gpus_per_node")},
    "colocate_all_models": together,
    "colocate_actor_ref": together,
    "colocate_critic_reward": together,
    # Generation.
    "vllm_num_engines": together,
    "vllm_tensor_parallel_size": integer("generation.tensor_parallel"),
    "vllm_gpu_memory_utilization": number("generation.gpu_memory_utilization"),
    "enforce_eager": on("generation.enforce_eager"),
    "enable_prefix_caching": on("generation.enable_prefix_caching"),
    "vllm_sync_backend": choice("weights.backend", {"nccl": "nccl", "gloo": "gloo"}, "weights travel by nccl or gloo"),
    "vllm_sync_with_ray": dropped("weights travel by nccl or gloo"),
    "vllm_enable_sleep": dropped(_SLEEP),
    "deepspeed_enable_sleep": dropped(_SLEEP),
    "fsdp2_enable_sleep": dropped(_SLEEP),
    "vllm_generate_batch_size": dropped("prompts are handed out one by one to whoever is free"),
    "rollout_tasks_per_gpu": dropped("rollout.concurrency says how many prompts are in work at once"),
    "async_train": dropped("rollouts of the next step are not begun before this one is trained"),
    "async_queue_size": dropped("rollouts of the next step are not begun before this one is trained"),
    "partial_rollout": dropped("a response is finished by the weights that began it"),
    # Rollouts and batches.
    "rollout_batch_size": together,
    "train_batch_size": together,
    "micro_train_batch_size": together,
    "micro_rollout_batch_size": dropped("forward passes are filled by tokens (reference.batch_tokens)"),
    "n_samples_per_prompt": integer("sampling.n"),
    "max_epochs": integer("train.passes"),
    "num_episodes": together,
    "prompt_max_len": together,
    "generate_max_len": together,
    "max_len": together,
    "use_dynamic_batch": together,
    "train_max_tokens_per_gpu": together,
    "rollout_max_tokens_per_gpu": integer("reference.batch_tokens"),
    "temperature": number("sampling.temperature"),
    "top_p": together,
    "freezing_actor_steps": steps("train.freezing_actor_steps"),
    # Rewards.
    "pretrain": text("model"),
    "reward_pretrain": together,
    "remote_rm_url": together,
    "critic_pretrain": together,
    "normalize_reward": together,
    "reward_clip_range": pair("shaping.clip"),
    "overlong_buffer_len": integer("shaping.overlong_buffer"),
    "overlong_penalty_factor": number("shaping.overlong_factor"),
    "stop_properly_penalty_coef": number("shaping.stop_coef"),
    "agent_func_path": dropped("there are no agents with steps of their own: write a reward function (reward.scorers)"),
    "dynamic_filtering": dropped(
        "groups whose rewards are all equal are not sampled again; they have no gradient (advantage 0)"
    ),
    "dynamic_filtering_reward_range": dropped("see --dynamic_filtering"),
    "ref_pretrain": text("reference.model"),
    **{name: dropped("services keep their models where they compute")
       for name in ("ref_offload", "reward_offload", "ref_reward_offload")},
    "save_value_network": dropped("the critic is part of every checkpoint"),
    # Objectives.
    "advantage_estimator": choice(
        "advantage.estimator",
        {name: name for name in ("gae", "reinforce", *GROUP_ESTIMATORS)} | {"grpo": "group_norm"},
        "an estimator that is not known here",
    ),
    "gamma": together,
    "lambd": number("advantage.lam"),
    "no_advantage_std_norm": on("advantage.whiten", value="center"),
    "policy_loss_type": choice(
        "loss.kind", {name: name for name in ("ppo", "gspo", "cispo", "reinforce")}, "a loss that is not known here"
    ),
    "eps_clip": number("loss.clip_low", "loss.clip_high"),
    "eps_clip_low_high": together,
    "dual_clip": number("loss.dual_clip"),
    "value_clip": number("critic.value_clip"),
    "entropy_loss_coef": number("loss.entropy_coef"),
    "init_kl_coef": number("kl.coef"),
    "kl_target": number("kl.target"),
    "kl_horizon": integer("kl.horizon"),
    "kl_estimator": together,
    "use_kl_estimator_k3": together,
    "use_kl_loss": together,
    "enable_vllm_is_correction": together,
    "vllm_is_truncated_threshold": together,
    "vllm_is_correction_type": together,
    "use_icepop": together,
    **{name: together for name in ("ptx_coef", "pretrain_data", "pretrain_data_probs", "pretrain_split")},
    # Data and evaluation.
    **{name: together for name in ("prompt_data", "prompt_data_probs", "prompt_split", "input_key", "label_key",
                                   "input_template", "apply_chat_template", "tokenizer_chat_template", "max_samples")},
    "eval_dataset": together,
    "eval_split": together,
    "eval_steps": together,
    "eval_temperature": together,
    "eval_n_samples_per_prompt": dropped_unless("1", "one response a prompt is evaluated; `rlctl eval` takes several"),
    "logging_steps": dropped_unless("1", "every step is logged"),
    "image_key": dropped("models of images are not trained"),
    "max_images_per_prompt": dropped_unless("0", "models of images are not trained"),
    "actor_freeze_visual_encoder": dropped("models of images are not trained"),
}  # fmt: skip
