"""Every flag of OpenRLHF is known, and what is said of those that are not right."""

from __future__ import annotations

import pytest

from rlctl.core.errors import ConfigError
from rlctl.migrate.migrate import COMMANDS, as_toml, migrate
from rlctl.migrate.names import classic

LEARNER = """save_path save_steps logging_steps eval_steps ckpt_path max_ckpt_num max_ckpt_mem load_checkpoint
 use_ds_universal_ckpt max_norm gradient_checkpointing deepcompile seed full_determinism local_rank zero_stage bf16
 zpg adam_offload flash_attn attn_implementation use_liger_kernel grad_accum_dtype overlap_comm
 gradient_checkpointing_use_reentrant disable_fast_tokenizer ds_tensor_parallel_size load_in_4bit lora_rank
 lora_alpha lora_dropout target_modules pretrain max_epochs aux_loss_coef lr_warmup_ratio lr_scheduler
 micro_train_batch_size train_batch_size l2 adam_betas packing_samples max_samples use_wandb wandb_org wandb_group
 wandb_project wandb_run_name use_tensorboard use_ms"""
OFFLINE = (
    LEARNER
    + """ learning_rate dataset dataset_probs eval_dataset dataset_split eval_split train_split max_len
 dist_backend torch_compile ckpt.output_dir ckpt.save_steps logger.logging_steps eval.steps ckpt.path ckpt.max_num
 ckpt.max_mem ds.use_universal_ckpt train.micro_batch_size train.batch_size ckpt.load_enable ckpt.save_hf
 ckpt.disable_ds model.gradient_checkpointing_enable ds.deepcompile train.seed train.full_determinism_enable
 data.disable_fast_tokenizer data.dataloader_num_workers ds.zero_stage ds.param_dtype ds.zpg ds.adam_offload
 ds.attn_implementation ds.experts_implementation ds.use_liger_kernel ds.grad_accum_dtype ds.overlap_comm
 model.gradient_checkpointing_reentrant ds.tensor_parallel_size train.max_epochs model.aux_loss_coef optim muon.lr
 muon.momentum muon.ns_steps muon.nesterov muon.no_nesterov adam.lr adam.betas adam.eps adam.weight_decay
 lr_scheduler lr_warmup_ratio min_lr_ratio max_norm ds.ring_attn_size ds.ring_attn_head_stride ds.load_in_4bit
 ds.lora.rank ds.lora.alpha ds.lora.target_modules ds.lora.dropout ds.packing_samples model.model_name_or_path
 data.dataset data.dataset_probs eval.dataset data.dataset_split eval.split data.max_samples data.max_len
 logger.wandb.key logger.wandb.org logger.wandb.group logger.wandb.project logger.wandb.run_name
 logger.tensorboard_dir"""
)
PROMPTED = " input_template apply_chat_template tokenizer_chat_template data.input_template data.apply_chat_template"
PAIRS = (
    PROMPTED
    + """ prompt_key chosen_key rejected_key data.prompt_key data.chosen_key data.rejected_key
 data.tokenizer_chat_template ring_attn_size ring_head_stride save_hf_ckpt disable_ds_ckpt"""
)
FLAGS = {
    "train_sft": OFFLINE + PROMPTED + """ pretrain_mode multiturn input_key output_key ring_attn_size ring_head_stride
 save_hf_ckpt disable_ds_ckpt model.pretrain_mode_enable data.multiturn data.input_key data.output_key""",
    "train_rm": OFFLINE + PAIRS + """ value_head_prefix compute_fp32_loss margin_loss loss
 model.compute_fp32_loss_enable model.margin_loss_enable model.loss_type ds.value_head_prefix""",
    "train_dpo": OFFLINE + PAIRS + """ ref_offload beta ipo label_smoothing nll_loss_coef ref_pretrain ref.offload
 model.beta model.ipo_enable model.label_smoothing model.nll_loss_coef ref.model_name_or_path""",
    "train_kto": OFFLINE + PROMPTED + """ ref_offload beta desirable_loss_weight undesirable_loss_weight input_key
 output_key label_key""",
    "train_kd": OFFLINE + PROMPTED + """ teacher_model kd_coef pretrain_mode teacher_offload input_key output_key
 save_hf_ckpt disable_ds_ckpt""",
    "train_prm": OFFLINE + " placeholder_token reward_tokens input_key label_key",
    "train_ppo_ray": LEARNER + """ ref_num_nodes ref_num_gpus_per_node reward_num_nodes reward_num_gpus_per_node
 colocate_actor_ref actor_num_nodes actor_num_gpus_per_node critic_num_nodes critic_num_gpus_per_node
 colocate_critic_reward colocate_all_models vllm_num_engines vllm_tensor_parallel_size vllm_sync_backend
 vllm_sync_with_ray enable_prefix_caching enforce_eager vllm_enable_sleep vllm_gpu_memory_utilization
 enable_vllm_is_correction vllm_is_truncated_threshold async_train async_queue_size save_hf_ckpt disable_ds_ckpt
 enable_ema ema_beta actor_init_on_gpu deepspeed_enable_sleep use_dynamic_batch rollout_max_tokens_per_gpu
 train_max_tokens_per_gpu num_episodes rollout_batch_size vllm_generate_batch_size rollout_tasks_per_gpu
 micro_rollout_batch_size prompt_max_len generate_max_len max_len ptx_coef eps_clip eps_clip_low_high dual_clip
 value_clip lambd gamma normalize_reward top_p temperature freezing_actor_steps n_samples_per_prompt
 save_value_network actor_learning_rate critic_learning_rate kl_target kl_horizon init_kl_coef policy_loss_type
 kl_estimator entropy_loss_coef reward_clip_range advantage_estimator use_kl_loss no_advantage_std_norm
 overlong_buffer_len overlong_penalty_factor ring_attn_size ring_head_stride reward_pretrain remote_rm_url
 critic_pretrain value_head_prefix ref_reward_offload agent_func_path prompt_data prompt_data_probs prompt_split
 eval_dataset eval_split eval_temperature eval_n_samples_per_prompt input_key label_key input_template
 apply_chat_template dynamic_filtering dynamic_filtering_reward_range perf pretrain_data pretrain_data_probs
 ref.num_nodes ref.num_gpus_per_node reward.num_nodes reward.num_gpus_per_node train.colocate_actor_ref
 actor.num_nodes actor.num_gpus_per_node critic.num_nodes critic.num_gpus_per_node train.colocate_critic_reward
 train.colocate_all vllm.num_engines vllm.tensor_parallel_size vllm.sync_backend vllm.sync_with_ray
 vllm.enable_prefix_caching vllm.enforce_eager vllm.enable_sleep vllm.gpu_memory_utilization
 algo.advantage.is_correction_enable algo.advantage.is_correction_threshold algo.advantage.is_correction_type
 train.async_enable train.async_queue_size train.partial_rollout_enable eval.steps ckpt.save_steps
 logger.logging_steps ckpt.path ckpt.save_hf ckpt.disable_ds ckpt.max_num ckpt.max_mem ckpt.load_enable
 ckpt.best_metric_key ds.use_universal_ckpt ds.zero_stage actor.gradient_checkpointing_enable ds.deepcompile
 ds.param_dtype train.enable_ema train.ema_beta ds.zpg ds.adam_offload ds.attn_implementation
 ds.experts_implementation ds.use_liger_kernel ds.grad_accum_dtype ds.overlap_comm
 actor.gradient_checkpointing_reentrant data.disable_fast_tokenizer data.dataloader_num_workers ds.enable_sleep
 ds.tensor_parallel_size ds.packing_samples train.dynamic_batch_enable rollout.max_tokens_per_gpu
 train.max_tokens_per_gpu ds.load_in_4bit ds.lora.rank ds.lora.alpha ds.lora.target_modules ds.lora.dropout
 ckpt.output_dir train.num_episodes rollout.batch_size rollout.vllm_generate_batch_size rollout.micro_batch_size
 train.max_epochs data.max_len rollout.max_new_tokens data.max_samples actor.eps_clip actor.eps_clip_low_high
 actor.dual_clip critic.value_clip algo.advantage.lambd algo.advantage.gamma train.micro_batch_size
 train.batch_size reward.normalize_enable rollout.top_p rollout.temperature train.seed
 train.full_determinism_enable critic.freezing_steps rollout.n_samples_per_prompt critic.save_value_network
 algo.kl.target algo.kl.horizon algo.kl.init_coef actor.policy_loss_type algo.kl.estimator actor.aux_loss_coef
 actor.entropy_coef reward.clip_range actor.optim actor.muon.lr actor.muon.momentum actor.muon.ns_steps
 actor.muon.nesterov actor.muon.no_nesterov actor.adam.lr actor.adam.betas actor.adam.eps actor.adam.weight_decay
 actor.lr_scheduler actor.lr_warmup_ratio actor.min_lr_ratio actor.max_norm critic.optim critic.muon.lr
 critic.muon.momentum critic.muon.ns_steps critic.muon.nesterov critic.muon.no_nesterov critic.adam.lr
 critic.adam.betas critic.adam.eps critic.adam.weight_decay critic.lr_scheduler critic.lr_warmup_ratio
 critic.min_lr_ratio critic.max_norm algo.advantage.estimator algo.kl.use_loss algo.advantage.no_std_norm
 reward.overlong_buffer_len reward.overlong_penalty_factor reward.stop_properly_penalty_coef ds.ring_attn_size
 ds.ring_attn_head_stride actor.model_name_or_path reward.model_name_or_path reward.remote_url
 critic.model_name_or_path ds.value_head_prefix ref.offload reward.offload train.agent_func_path
 data.prompt_dataset data.prompt_probs data.prompt_split eval.dataset eval.split eval.temperature
 eval.n_samples_per_prompt data.input_key data.label_key data.input_template data.apply_chat_template
 logger.wandb.key logger.wandb.org logger.wandb.group logger.wandb.project logger.wandb.run_name
 algo.dynamic_filtering_enable algo.dynamic_filtering_range data.image_key data.max_images_per_prompt
 actor.freeze_visual_encoder logger.tensorboard_dir use_ms""",
}  # fmt: skip


@pytest.mark.parametrize("command", FLAGS)
def test_every_flag_of_a_command_is_known(command):
    table = COMMANDS[command][1]
    assert [name for name in FLAGS[command].split() if classic(name) not in table] == []


def sft(*flags: str):
    return migrate(["openrlhf.cli.train_sft", "--pretrain", "m", "--dataset", "d", *flags])


def ppo(*flags: str):
    return migrate(["openrlhf.cli.train_ppo_ray", "--pretrain", "m", "--prompt_data", "d", *flags])


@pytest.mark.parametrize(
    "words, message",
    [
        (["python", "train.py", "--lr", "1"], "no OpenRLHF command line: write rlctl migrate -- python -m"),
        (["openrlhf.cli.train_ppo", "--pretrain", "m"], "older than OpenRLHF 0.6"),
        (["openrlhf.cli.train_sft", "--dataset", "d"], "--pretrain .* is missing"),
        (["openrlhf.cli.train_sft", "--pretrain", "m"], "--dataset is missing"),
        (["openrlhf.cli.train_kd", "--pretrain", "m", "--dataset", "d"], "--teacher_model is missing"),
        (["openrlhf.cli.train_sft", "stray", "--pretrain", "m"], "'stray' stands before the first flag"),
        (
            ["openrlhf.cli.train_sft", "--pretrain", "m", "--dataset", "d", "--seed", "x"],
            "--seed takes a number, not x",
        ),
        (
            ["openrlhf.cli.train_sft", "--pretrain", "m", "--dataset", "d", "--adam_betas", "1"],
            "takes 2 numbers, not 1",
        ),
        (["openrlhf.cli.train_sft", "--pretrain", "m", "n", "--dataset", "d"], "--pretrain takes one value, not 2"),
        (["openrlhf.cli.train_sft", "--pretrain", "m", "--dataset", "a,b", "--dataset_probs", "1"], "1 shares for 2"),
    ],
)
def test_what_is_wrong_is_said(words, message):
    with pytest.raises(ConfigError, match=message):
        migrate(words)


def test_values_may_follow_an_equals_sign_and_lines_may_be_continued():
    assert sft("--seed=5", "\\", "--max_len=64").get("seed") == 5
    assert sft("--max_len=64").get("data")[0]["max_len"] == 64


def test_flags_that_are_unknown_or_contradict_are_left_with_a_reason():
    left = {each.flag: each.reason for each in sft("--magic", "7", "--ema_beta", "0.9", "--param_dtype", "fp16").left}
    assert left == {
        "--magic 7": "no flag of train_sft that is known here",
        "--ema_beta": "no average was kept (no --enable_ema)",
        "--param_dtype fp16": "bfloat16 and float32 are trained, float16 is not",
    }


def test_the_estimator_decides_about_the_critic():
    assert ppo().get("critic.learner.optimizer.lr") == 9e-6
    draft = ppo("--advantage_estimator", "rloo", "--n_samples_per_prompt", "4", "--critic_learning_rate", "1e-5",
                "--freezing_actor_steps", "3", "--gamma", "0.9")  # fmt: skip
    assert draft.get("critic") is None
    assert {each.flag for each in draft.left} == {"--critic_learning_rate", "--freezing_actor_steps", "--gamma 0.9"}


def test_pretraining_data_is_mixed_in():
    draft = ppo("--pretrain_data", "./books,./web", "--pretrain_data_probs", "0.25,0.75", "--ptx_coef", "0.1",
                "--train_batch_size", "64", "--prompt_max_len", "100", "--generate_max_len", "28")  # fmt: skip
    assert draft.get("ptx") == {
        "coef": 0.1,
        "batch_size": 64,
        "data": [
            {"path": "./books", "input_key": "input", "pretrain": True, "max_len": 128, "probability": 0.25},
            {"path": "./web", "input_key": "input", "pretrain": True, "max_len": 128, "probability": 0.75},
        ],
    }
    assert [(each.flag, each.reason) for each in ppo("--ptx_coef", "0.1").left] == [
        ("--ptx_coef", "there is no --pretrain_data")
    ]


def test_the_header_of_a_recipe_tells_what_was_left():
    text = as_toml(sft("--load_checkpoint"))
    assert text.startswith("# Made from an OpenRLHF command line by `rlctl migrate`: rlctl launch sft THIS_FILE\n")
    assert "#   --load_checkpoint: a run that exists is gone on with" in text


def test_the_command_writes_the_recipe_to_a_file_and_the_rest_to_the_terminal(tmp_path, capsys):
    from rlctl.cli.migrate import migrate as command

    words = ["openrlhf.cli.train_sft", "--pretrain", "m", "--dataset", "d", "--load_checkpoint"]
    command(words, tmp_path / "sft.toml")
    said = capsys.readouterr()
    assert said.out == ""
    assert "--load_checkpoint" in said.err
    assert (tmp_path / "sft.toml").read_text() == as_toml(migrate(words))
    with pytest.raises(ConfigError, match="is there already"):
        command(words, tmp_path / "sft.toml")
    command(words, None)
    assert capsys.readouterr().out == as_toml(migrate(words))
