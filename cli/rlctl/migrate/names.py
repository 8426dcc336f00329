"""Names of flags: those of OpenRLHF 0.10 and later stand in groups (`--ds.zero_stage`), the classic ones do not.

The tables know the classic names. A grouped name that only lost its group or its dots needs no entry here.
"""

from __future__ import annotations

GROUPED = {
    "model.model_name_or_path": "pretrain",
    "actor.model_name_or_path": "pretrain",
    "model_name_or_path": "pretrain",
    "ref.model_name_or_path": "ref_pretrain",
    "reward.model_name_or_path": "reward_pretrain",
    "critic.model_name_or_path": "critic_pretrain",
    "teacher.model_name_or_path": "teacher_model",
    "reward.remote_url": "remote_rm_url",
    "reward.normalize_enable": "normalize_reward",
    "reward.clip_range": "reward_clip_range",
    "reward.overlong_buffer_len": "overlong_buffer_len",
    "reward.overlong_penalty_factor": "overlong_penalty_factor",
    "reward.stop_properly_penalty_coef": "stop_properly_penalty_coef",
    "ref.offload": "ref_offload",
    "teacher.offload": "teacher_offload",
    "ckpt.output_dir": "save_path",
    "ckpt_save_path": "save_path",
    "ckpt.path": "ckpt_path",
    "ckpt.save_steps": "save_steps",
    "ckpt.save_hf": "save_hf_ckpt",
    "ckpt.disable_ds": "disable_ds_ckpt",
    "ckpt.max_num": "max_ckpt_num",
    "ckpt.max_mem": "max_ckpt_mem",
    "ckpt.load_enable": "load_checkpoint",
    "ds.use_universal_ckpt": "use_ds_universal_ckpt",
    "ds.enable_sleep": "deepspeed_enable_sleep",
    "ds.tensor_parallel_size": "ds_tensor_parallel_size",
    "ds.ring_attn_head_stride": "ring_head_stride",
    "ds.lora.rank": "lora_rank",
    "ds.lora.alpha": "lora_alpha",
    "ds.lora.dropout": "lora_dropout",
    "ds.lora.target_modules": "target_modules",
    "vllm.enable_prefix_caching": "enable_prefix_caching",
    "vllm.enforce_eager": "enforce_eager",
    "vllm_enable_is_correction": "enable_vllm_is_correction",
    "algo.advantage.is_correction_enable": "enable_vllm_is_correction",
    "algo.advantage.is_correction_threshold": "vllm_is_truncated_threshold",
    "algo.advantage.is_correction_type": "vllm_is_correction_type",
    "algo.advantage.estimator": "advantage_estimator",
    "algo.advantage.lambd": "lambd",
    "algo.advantage.gamma": "gamma",
    "algo.advantage.no_std_norm": "no_advantage_std_norm",
    "algo.kl.init_coef": "init_kl_coef",
    "algo.kl.target": "kl_target",
    "algo.kl.horizon": "kl_horizon",
    "algo.kl.estimator": "kl_estimator",
    "algo.kl.use_loss": "use_kl_loss",
    "algo.dynamic_filtering_enable": "dynamic_filtering",
    "algo.dynamic_filtering_range": "dynamic_filtering_reward_range",
    "actor.gradient_checkpointing_enable": "gradient_checkpointing",
    "model.gradient_checkpointing_enable": "gradient_checkpointing",
    "actor.gradient_checkpointing_reentrant": "gradient_checkpointing_use_reentrant",
    "model.gradient_checkpointing_reentrant": "gradient_checkpointing_use_reentrant",
    "actor.entropy_coef": "entropy_loss_coef",
    "actor.adam.lr": "actor_learning_rate",
    "critic.adam.lr": "critic_learning_rate",
    "critic.freezing_steps": "freezing_actor_steps",
    "adam.lr": "learning_rate",
    "adam.betas": "adam_betas",
    "adam.weight_decay": "l2",
    "model.pretrain_mode_enable": "pretrain_mode",
    "model.loss_type": "loss",
    "model.margin_loss_enable": "margin_loss",
    "model.compute_fp32_loss_enable": "compute_fp32_loss",
    "model.ipo_enable": "ipo",
    "train.batch_size": "train_batch_size",
    "train.micro_batch_size": "micro_train_batch_size",
    "train.max_tokens_per_gpu": "train_max_tokens_per_gpu",
    "train.dynamic_batch_enable": "use_dynamic_batch",
    "train.colocate_all": "colocate_all_models",
    "train.async_enable": "async_train",
    "train.partial_rollout_enable": "partial_rollout",
    "train.full_determinism_enable": "full_determinism",
    "rollout.batch_size": "rollout_batch_size",
    "rollout.micro_batch_size": "micro_rollout_batch_size",
    "rollout.max_new_tokens": "generate_max_len",
    "rollout.max_tokens_per_gpu": "rollout_max_tokens_per_gpu",
    "data.prompt_dataset": "prompt_data",
    "data.prompt_probs": "prompt_data_probs",
    "data.prompt_max_len": "prompt_max_len",
    "train_split": "dataset_split",
    "eval.dataset": "eval_dataset",
    "eval.split": "eval_split",
    "eval.steps": "eval_steps",
    "eval.temperature": "eval_temperature",
    "eval.n_samples_per_prompt": "eval_n_samples_per_prompt",
    "logger.logging_steps": "logging_steps",
    "logger.tensorboard_dir": "use_tensorboard",
    "logger.wandb.key": "use_wandb",
    "logger.wandb.org": "wandb_org",
    "logger.wandb.group": "wandb_group",
    "logger.wandb.project": "wandb_project",
    "logger.wandb.run_name": "wandb_run_name",
}
#: Groups whose flags kept their names otherwise: `--ds.zero_stage` is `--zero_stage`.
_GROUPS = ("data.", "ds.", "fsdp.", "rollout.", "train.", "model.", "ckpt.", "logger.", "algo.", "kd.", "kto.", "prm.")
#: Whose names say of which part they are: `--vllm.num_engines` is `--vllm_num_engines`.
_PARTS = ("vllm.", "ref.", "critic.", "eval.", "reward.", "muon.", "adam.")
#: Settings of the policy and its losses, which the classic names give no part.
_ACTORS_OWN = ("eps_clip", "eps_clip_low_high", "dual_clip", "policy_loss_type", "aux_loss_coef")


def classic(name: str) -> str:
    """The classic name of a flag (without dashes)."""
    if name in GROUPED:
        return GROUPED[name]
    if name == "critic.value_clip" or name == "critic.save_value_network":
        return name.removeprefix("critic.")
    if name.startswith("actor."):
        own = name.removeprefix("actor.")
        return own if own in _ACTORS_OWN else name.replace(".", "_")
    if name.startswith(_PARTS):
        return name.replace(".", "_")
    for group in _GROUPS:
        if name.startswith(group):
            return name.removeprefix(group).replace(".", "_")
    return name
