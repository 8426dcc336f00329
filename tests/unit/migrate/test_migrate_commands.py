"""Command lines as OpenRLHF's examples write them."""

from __future__ import annotations

import shlex

import pytest

from rlctl.core.config import load
from rlctl.launch.recipe import Recipe
from rlctl.migrate.migrate import as_toml, migrate
from rlctl.offline.config import JOBS

PPO = """ray job submit --address="http://127.0.0.1:8265" --runtime-env-json='{"working_dir": "/openrlhf"}'
 -- python3 -m openrlhf.cli.train_ppo_ray --ref_num_nodes 1 --ref_num_gpus_per_node 2 --reward_num_nodes 1
 --reward_num_gpus_per_node 2 --critic_num_nodes 1 --critic_num_gpus_per_node 2 --actor_num_nodes 1
 --actor_num_gpus_per_node 4 --vllm_num_engines 2 --vllm_tensor_parallel_size 2 --colocate_critic_reward
 --colocate_actor_ref --pretrain OpenRLHF/Llama-3-8b-sft-mixture --reward_pretrain OpenRLHF/Llama-3-8b-rm-mixture
 --save_path /checkpoint/llama3-8b-rlhf --micro_train_batch_size 8 --train_batch_size 128
 --micro_rollout_batch_size 32 --rollout_batch_size 1024 --max_samples 100000 --max_epochs 1 --prompt_max_len 1024
 --generate_max_len 1024 --zero_stage 3 --bf16 --actor_learning_rate 5e-7 --critic_learning_rate 9e-6
 --init_kl_coef 0.01 --prompt_data OpenRLHF/prompt-collection-v0.1 --input_key context_messages
 --apply_chat_template --normalize_reward --packing_samples --adam_offload --flash_attn --gradient_checkpointing
 --load_checkpoint --use_wandb a-key"""

PPO_GROUPED = """python3 -m openrlhf.cli.train_ppo_ray --ref.num_nodes 1 --ref.num_gpus_per_node 2 --reward.num_nodes 1
 --reward.num_gpus_per_node 2 --critic.num_nodes 1 --critic.num_gpus_per_node 2 --actor.num_nodes 1
 --actor.num_gpus_per_node 4 --vllm.num_engines 2 --vllm.tensor_parallel_size 2 --train.colocate_critic_reward
 --train.colocate_actor_ref --actor.model_name_or_path OpenRLHF/Llama-3-8b-sft-mixture
 --reward.model_name_or_path OpenRLHF/Llama-3-8b-rm-mixture --ckpt.output_dir /checkpoint/llama3-8b-rlhf
 --train.micro_batch_size 8 --train.batch_size 128 --rollout.micro_batch_size 32 --rollout.batch_size 1024
 --data.max_samples 100000 --train.max_epochs 1 --data.max_len 2048 --rollout.max_new_tokens 1024 --ds.zero_stage 3
 --ds.param_dtype bf16 --actor.adam.lr 5e-7 --critic.adam.lr 9e-6 --algo.kl.init_coef 0.01
 --data.prompt_dataset OpenRLHF/prompt-collection-v0.1 --data.input_key context_messages --data.apply_chat_template
 --reward.normalize_enable --ds.packing_samples --ds.adam_offload --ds.attn_implementation flash_attention_2
 --actor.gradient_checkpointing_enable --ckpt.load_enable --logger.wandb.key a-key"""

PRORL = """python3 -m openrlhf.cli.train_ppo_ray --ref_num_nodes 1 --ref_num_gpus_per_node 8 --actor_num_nodes 1
 --actor_num_gpus_per_node 8 --vllm_num_engines 8 --vllm_tensor_parallel_size 1 --colocate_all_models
 --vllm_gpu_memory_utilization 0.75 --init_kl_coef 1e-4 --gamma 1.0 --use_kl_loss --kl_estimator k2
 --advantage_estimator reinforce_baseline --dynamic_filtering --dynamic_filtering_reward_range 0 1
 --eps_clip_low_high 0.2 0.27 --pretrain deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B
 --remote_rm_url examples/python/math_reward_func.py --save_path exp/PRORLV2 --ckpt_path exp/PRORLV2/ckpt
 --save_steps 5 --save_hf_ckpt --train_batch_size 1024 --rollout_batch_size 512 --n_samples_per_prompt 16
 --use_dynamic_batch --num_episodes 100 --prompt_max_len 1024 --generate_max_len 8192 --zero_stage 3
 --param_dtype bf16 --actor_learning_rate 1e-6 --prompt_data OpenRLHF/dapo-math-17k --input_key prompt
 --label_key label --eval_dataset OpenRLHF/aime-2024 --eval_steps 5 --eval_temperature 1.0
 --eval_n_samples_per_prompt 4 --apply_chat_template --gradient_checkpointing --packing_samples
 --vllm_sync_backend nccl --enforce_eager --vllm_enable_sleep --deepspeed_enable_sleep --enable_vllm_is_correction
 --vllm_is_truncated_threshold 0.5 5.0 --use_icepop --train_max_tokens_per_gpu 32768
 --stop_properly_penalty_coef 0.0"""

GRPO_GROUPED = """python3 -m openrlhf.cli.train_ppo_ray --actor.model_name_or_path Qwen/Qwen2.5-0.5B
 --reward.remote_url http://localhost:5000/get_reward --data.prompt_dataset ./a,./b --data.prompt_probs 3,1
 --data.input_key prompt --data.label_key label --data.apply_chat_template --ref.num_nodes 1
 --ref.num_gpus_per_node 4 --actor.num_nodes 1 --actor.num_gpus_per_node 4 --vllm.num_engines 4
 --train.colocate_all --vllm.enable_sleep --ds.enable_sleep --vllm.sync_backend nccl --vllm.enforce_eager
 --vllm.enable_prefix_caching --algo.advantage.estimator group_norm --algo.kl.use_loss --algo.kl.estimator k1
 --algo.kl.init_coef 1e-5 --rollout.batch_size 8 --rollout.n_samples_per_prompt 4 --rollout.max_new_tokens 384
 --data.max_len 512 --train.batch_size 8 --train.micro_batch_size 4 --ds.zero_stage 2 --actor.adam.lr 1e-6
 --algo.advantage.is_correction_enable --algo.advantage.is_correction_type seq-mask-tis
 --algo.advantage.is_correction_threshold 0.98 1.02 --actor.policy_loss_type gspo --actor.lr_scheduler constant
 --actor.muon.lr 0.02 --train.agent_func_path agent.py --rollout.top_p 0.9 --logger.logging_steps 1"""

SFT = """deepspeed --num_gpus 8 --module openrlhf.cli.train_sft --max_len 2048 --dataset Open-Orca/OpenOrca
 --input_key question --output_key response --input_template 'User: {}\nAssistant: ' --train_batch_size 256
 --micro_train_batch_size 2 --max_samples 500000 --pretrain meta-llama/Meta-Llama-3-8B
 --save_path ./checkpoint/llama3-8b-sft --save_steps -1 --logging_steps 1 --eval_steps -1 --zero_stage 2
 --max_epochs 1 --bf16 --flash_attn --learning_rate 5e-6 --load_checkpoint --packing_samples
 --gradient_checkpointing"""

SFT_GROUPED = """torchrun --standalone --nproc-per-node 4 -m openrlhf.cli.train_sft --data.dataset json@./data
 --data.input_key messages --data.apply_chat_template --data.multiturn --train.batch_size 16
 --train.micro_batch_size 1 --model.model_name_or_path Qwen/Qwen2.5-0.5B --ckpt.output_dir out/sft
 --ckpt.save_steps 50 --ckpt.max_num 1 --eval.dataset json@./data --eval.split test --eval.steps 25
 --ds.zero_stage 3 --ds.lora.rank 64 --ds.lora.alpha 16 --ds.lora.target_modules q_proj v_proj --ds.load_in_4bit
 --ds.param_dtype bf16 --ds.attn_implementation sdpa --adam.lr 1e-5 --adam.betas 0.9 0.99 --max_norm 0.5
 --lr_scheduler constant_with_warmup --lr_warmup_ratio 0.1 --ds.ring_attn_size 2 --ds.ring_attn_head_stride 2
 --train.seed 7 --model.aux_loss_coef 0.001"""

MIXTRAL = """deepspeed ../train_sft.py --max_len 2048 --dataset Open-Orca/OpenOrca --dataset_probs 1.0
 --train_batch_size 128 --micro_train_batch_size 4 --max_samples 500000 --pretrain mistralai/Mixtral-8x7B-v0.1
 --save_path ./ckpt/mixtral_sft --save_steps -1 --logging_steps 1 --eval_steps -1 --zero_stage 3 --max_epochs 1
 --bf16 --gradient_checkpointing --learning_rate 5e-6 --lora_rank 64 --lora_alpha 16 --aux_loss_coef 0.001"""

CONTINUED = """deepspeed --module openrlhf.cli.train_sft --pretrain_mode --dataset ./books --input_key text
 --max_len 4096 --train_batch_size 128 --micro_train_batch_size 2 --pretrain base --save_path out/base
 --zero_stage 2 --packing_samples"""

RM = """deepspeed --module openrlhf.cli.train_rm --save_path ./checkpoint/llama3-8b-rm --save_steps -1
 --logging_steps 1 --eval_steps -1 --train_batch_size 256 --micro_train_batch_size 1
 --pretrain OpenRLHF/Llama-3-8b-sft-mixture --param_dtype bf16 --max_epochs 1 --max_len 8192 --zero_stage 3
 --learning_rate 9e-6 --dataset OpenRLHF/preference_dataset_mixture2_and_safe_pku --apply_chat_template
 --chosen_key chosen --rejected_key rejected --attn_implementation flash_attention_2 --load_checkpoint
 --packing_samples --gradient_checkpointing --margin_loss --compute_fp32_loss --value_head_prefix score"""

DPO = """deepspeed --module openrlhf.cli.train_dpo --save_path ./checkpoint/llama3-8b-dpo --save_steps -1
 --logging_steps 1 --eval_steps -1 --train_batch_size 256 --micro_train_batch_size 1
 --pretrain OpenRLHF/Llama-3-8b-sft-mixture --ref_pretrain OpenRLHF/other --bf16 --max_epochs 1 --max_len 8192
 --zero_stage 3 --learning_rate 5e-7 --beta 0.1 --label_smoothing 0.1 --nll_loss_coef 0.2
 --dataset OpenRLHF/preference_dataset_mixture2_and_safe_pku --apply_chat_template --chosen_key chosen
 --rejected_key rejected --flash_attn --load_checkpoint --packing_samples --gradient_checkpointing --ref_offload"""

IPO_GROUPED = """deepspeed --module openrlhf.cli.train_dpo --model.model_name_or_path m --data.dataset d
 --data.prompt_key prompt --data.max_len 1024 --model.ipo_enable --model.label_smoothing 0.1 --model.beta 0.5
 --adam.lr 1e-6 --ckpt.output_dir out/ipo --ds.tensor_parallel_size 2 --optim muon"""

KTO = """deepspeed --module openrlhf.cli.train_kto --save_path ./checkpoint/llama3-8b-kto --save_steps -1
 --logging_steps 1 --eval_steps -1 --train_batch_size 64 --micro_train_batch_size 1
 --pretrain OpenRLHF/Llama-3-8b-sft-mixture --bf16 --max_epochs 1 --max_len 8192 --zero_stage 3
 --learning_rate 5e-7 --dataset Dylan2048/ultrafeedback-unpaired-preferences --input_key instruction
 --output_key response --label_key score --flash_attn --beta 0.1 --max_samples 1024 --gradient_checkpointing"""

KD = """deepspeed --module openrlhf.cli.train_kd --max_len 2048 --dataset Open-Orca/OpenOrca --input_key question
 --output_key response --train_batch_size 256 --micro_train_batch_size 2 --max_samples 500000
 --pretrain meta-llama/Meta-Llama-3-8B-Instruct --teacher_model meta-llama/Meta-Llama-3-70B-Instruct
 --save_path ./checkpoint/llama3-8b-kd --save_steps -1 --logging_steps 1 --eval_steps -1 --zero_stage 2
 --max_epochs 1 --bf16 --flash_attn --kd_coef 0.4 --learning_rate 5e-6 --teacher_offload
 --gradient_checkpointing"""

PRM = """deepspeed --module openrlhf.cli.train_prm --save_path ./checkpoint/mistal-7b-prm --save_steps 500
 --logging_steps 1 --eval_steps 100 --train_batch_size 256 --micro_train_batch_size 8
 --pretrain mistralai/Mistral-7B-v0.1 --bf16 --max_epochs 1 --max_len 8192 --zero_stage 3 --learning_rate 1e-6
 --dataset zhuzilin/Math-Shepherd --input_key input --label_key value --flash_attn --load_checkpoint
 --gradient_checkpointing --packing_samples --wandb_group prm --placeholder_token ки --reward_tokens + -
 --specialize_reward_tokens"""

CASES = {
    "ppo": (PPO, {
        "model": "OpenRLHF/Llama-3-8b-sft-mixture", "name": "llama3-8b-rlhf", "runs_dir": "/checkpoint", "seed": 42,
        "critic.model": "OpenRLHF/Llama-3-8b-rm-mixture", "critic.value_clip": 0.5, "actor.ranks": 4,
        "critic.learner.ranks": 2, "reference.replicas": 2, "reward.replicas": 2, "generation.replicas": 2,
        "generation.tensor_parallel": 2, "generation.enforce_eager": False, "cluster.colocate": "actor_ref",
        "sampling.prompts_per_step": 1024, "sampling.n": 1, "train.minibatches": 8, "train.passes": 1,
        # 100000 prompts in steps of 1024, rounded up.
        "train.steps": 98, "data.max_prompt_len": 1024, "sampling.max_new_tokens": 1024,
        # 8 sequences of 2048 tokens.
        "actor.micro_batch_tokens": 16384, "actor.optimizer.lr": 5e-7, "critic.learner.optimizer.lr": 9e-6,
        "actor.optimizer.scheduler": "cosine", "actor.optimizer.warmup_ratio": 0.03, "actor.adam_offload": True,
        "critic.learner.adam_offload": True, "kl.coef": 0.01, "kl.estimator": "k1", "data.label_key": "",
        "data.max_samples": 100000, "log.wandb_project": "openrlhf_train_ppo", "checkpoint.steps": 0,
        "reward.scorers.0.kind": "model", "reward.scorers.0.normalize": True, "cluster.device": "gpu",
    }, {"--micro_rollout_batch_size 32", "--load_checkpoint", "--use_wandb", "--colocate_critic_reward"}),
    "prorl": (PRORL, {
        "advantage.estimator": "reinforce_baseline", "loss.clip_low": 0.2, "loss.clip_high": 0.27,
        "off_policy.kind": "icepop", "off_policy.low": 0.5, "off_policy.high": 5.0, "kl.as_loss": True,
        "kl.estimator": "k2", "cluster.colocate": "all", "shaping.stop_coef": 0.0, "sampling.n": 16,
        # 512 x 16 samples in steps of 1024.
        "train.minibatches": 8, "actor.micro_batch_tokens": 32768, "eval.data.path": "OpenRLHF/aime-2024",
        "eval.steps": 5, "eval.temperature": 1.0, "reward.scorers.0.kind": "function",
        "reward.scorers.0.path": "examples/python/math_reward_func.py", "checkpoint.steps": 5, "train.steps": None,
        "weights.backend": "nccl", "generation.gpu_memory_utilization": 0.75, "critic": None,
    }, {"--ckpt_path exp/PRORLV2/ckpt", "--save_hf_ckpt", "--dynamic_filtering", "--vllm_enable_sleep",
        "--dynamic_filtering_reward_range 0 1", "--deepspeed_enable_sleep", "--eval_n_samples_per_prompt 4"}),
    "grpo, grouped": (GRPO_GROUPED, {
        "data.mixture.0.path": "./a", "data.mixture.0.probability": 0.75, "data.mixture.1.probability": 0.25,
        "advantage.estimator": "group_norm", "loss.kind": "gspo", "off_policy.kind": "seq_mask_tis",
        "off_policy.seq_band": [0.98, 1.02], "kl.as_loss": True, "kl.estimator": "k2", "data.max_prompt_len": 128,
        "sampling.top_p": 0.9, "sampling.allow_biased": True, "reward.scorers.0.url": "http://localhost:5000/get_reward",
        "actor.optimizer.scheduler": "constant", "train.minibatches": 4, "generation.enable_prefix_caching": True,
    }, {"--vllm.enable_sleep", "--ds.enable_sleep", "--actor.muon.lr 0.02", "--train.agent_func_path agent.py"}),
    "sft": (SFT, {
        "job": "sft", "model": "meta-llama/Meta-Llama-3-8B", "batch_size": 256, "epochs": 1.0, "learner.ranks": 8,
        "learner.micro_batch_tokens": 4096, "data.0.path": "Open-Orca/OpenOrca", "data.0.input_key": "question",
        "data.0.output_key": "response", "data.0.input_template": "User: {}\nAssistant: ", "data.0.max_len": 2048,
        "data.0.max_samples": 500000, "learner.zero_stage": 2, "learner.optimizer.lr": 5e-6, "name": "llama3-8b-sft",
        "checkpoint.steps": 0, "eval_data": None,
    }, {"--load_checkpoint"}),
    "sft, grouped": (SFT_GROUPED, {
        "data.0.path": "json@./data", "data.0.apply_chat_template": True, "eval_data.split": "test", "eval_steps": 25,
        "learner.lora.rank": 64, "learner.lora.alpha": 16.0, "learner.lora.target_modules": ["q_proj", "v_proj"],
        # 4-bit weights cannot be parted.
        "learner.lora.quantize_4bit": True, "learner.zero_stage": 2, "learner.optimizer.betas": [0.9, 0.99],
        "learner.optimizer.max_grad_norm": 0.5, "learner.optimizer.scheduler": "constant", "seed": 7,
        "learner.optimizer.warmup_ratio": 0.1, "learner.sequence_parallel": 2, "learner.ranks": 4, "epochs": 2,
        "learner.attention": "sdpa", "checkpoint.keep": 2, "learner.aux_loss_coef": 0.001,
    }, {"--ds.ring_attn_head_stride 2"}),
    "mixture of experts": (MIXTRAL, {
        "learner.lora.rank": 64, "learner.aux_loss_coef": 0.001, "learner.zero_stage": 3, "data.0.input_key": "input",
        "data.0.probability": None,
    }, set()),
    "continued pre-training": (CONTINUED, {
        "data.0.pretrain": True, "data.0.input_key": "text", "data.0.max_len": 4096, "learner.packing": True,
    }, set()),
    "rm": (RM, {
        "job": "rm", "data.0.chosen_key": "chosen", "data.0.prompt_key": "", "data.0.margin_key": "margin",
        "data.0.max_len": 8192, "learner.micro_batch_tokens": 16384, "learner.optimizer.lr": 9e-6,
    }, {"--load_checkpoint", "--compute_fp32_loss"}),
    "dpo": (DPO, {
        "job": "dpo", "beta": 0.1, "label_smoothing": 0.1, "nll_coef": 0.2, "reference.model": "OpenRLHF/other",
    }, {"--load_checkpoint", "--ref_offload"}),
    "ipo, grouped": (IPO_GROUPED, {
        "loss": "ipo", "beta": 0.5, "data.0.prompt_key": "prompt", "label_smoothing": None,
    }, {"--model.label_smoothing", "--ds.tensor_parallel_size 2", "--optim muon"}),
    "kto": (KTO, {
        "job": "kto", "beta": 0.1, "data.0.output_key": "response", "data.0.label_key": "score",
        "data.0.input_template": "User: {}\nAssistant: ", "data.0.max_samples": 1024, "batch_size": 64,
    }, set()),
    "kd": (KD, {
        "job": "kd", "teacher": "meta-llama/Meta-Llama-3-70B-Instruct", "alpha": 0.4, "data.0.output_key": "response",
    }, {"--teacher_offload"}),
    "prm": (PRM, {
        "job": "prm", "data.0.placeholder": "ки", "data.0.positive": "+", "data.0.negative": "-",
        "data.0.label_key": "value", "learner.micro_batch_tokens": 65536, "checkpoint.steps": 500,
    }, {"--load_checkpoint", "--wandb_group prm", "--specialize_reward_tokens", "--eval_steps"}),
}  # fmt: skip


def at(settings, path: str):
    for name in path.split("."):
        if isinstance(settings, list):
            settings = settings[int(name)]
        elif name in settings:
            settings = settings[name]
        else:
            return None
    return settings


@pytest.mark.parametrize("name", CASES)
def test_a_command_line_becomes_a_recipe_that_loads(name, tmp_path):
    line, expected, left = CASES[name]
    draft = migrate(shlex.split(line))
    assert {path: at(draft.settings, path) for path in expected} == expected
    assert {each.flag for each in draft.left} == left
    path = tmp_path / "recipe.toml"
    path.write_text(as_toml(draft))
    load(JOBS.get(draft.get("job"), Recipe), path)


def test_grouped_names_give_the_same_recipe():
    classic, grouped = migrate(shlex.split(PPO)), migrate(shlex.split(PPO_GROUPED))
    assert grouped.settings == classic.settings
    assert len(grouped.left) == len(classic.left)


def test_a_key_is_written_nowhere():
    draft = migrate(shlex.split(PPO))
    assert "a-key" not in as_toml(draft)
    assert "WANDB_API_KEY" in as_toml(draft)
