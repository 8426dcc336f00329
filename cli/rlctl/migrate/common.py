"""Flags that every command has: the learner, checkpoints, logs, data."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rlctl.core.errors import ConfigError
from rlctl.migrate.command_line import CommandLine
from rlctl.migrate.draft import Draft
from rlctl.migrate.rules import (
    Table,
    choice,
    dropped,
    dropped_unless,
    integer,
    number,
    on,
    pair,
    secret,
    steps,
    together,
)

#: OpenRLHF's value for "all of them".
NO_LIMIT = 1_000_000

MUON = ("lr", "momentum", "ns_steps", "nesterov", "no_nesterov", "weight_decay")

RUN: Table = {
    "seed": integer("seed"),
    "save_path": together,
    "ckpt_path": dropped("checkpoints lie in the run's folder"),
    "save_steps": steps("checkpoint.steps"),
    "max_ckpt_num": together,
    "max_ckpt_mem": dropped("checkpoints are limited by number (checkpoint.keep)"),
    "load_checkpoint": dropped("a run that exists is gone on with, without being asked"),
    "save_hf_ckpt": dropped("`rlctl export` writes any checkpoint in Hugging Face format"),
    "disable_ds_ckpt": dropped("a run can always be gone on with"),
    "use_ds_universal_ckpt": dropped("checkpoints are read by as many ranks as wrote them"),
    "best_metric_key": dropped("the last checkpoints are kept, and the model at the end"),
    "wandb_project": together,
    "use_wandb": secret("the key comes from the environment: WANDB_API_KEY"),
    "wandb_org": dropped("wandb's own WANDB_ENTITY"),
    "wandb_group": dropped("wandb's own WANDB_RUN_GROUP"),
    "wandb_run_name": dropped("the run's name"),
    "use_tensorboard": on("log.tensorboard"),
    "local_rank": dropped("set by whoever starts the ranks"),
    "full_determinism": dropped("there is no such switch: on CPUs runs repeat bit for bit as they are"),
    "use_ms": dropped("models come from the Hugging Face hub (HF_ENDPOINT for a mirror) or from folders"),
    "perf": dropped("time/* of the metrics"),
    "disable_fast_tokenizer": dropped("fast tokenizers are always used"),
    "dataloader_num_workers": dropped("data is tokenised once, before the first step"),
}


def learner_table(*roots: str) -> Table:
    """The flags of a learner, set for each of `roots`."""

    def at(name: str) -> tuple[str, ...]:
        return tuple(f"{root}.{name}" for root in roots)

    return {
        "zero_stage": integer(*at("zero_stage")),
        "bf16": on(*at("dtype"), value="bfloat16"),
        "param_dtype": choice(at("dtype"), {"bf16": "bfloat16"}, "bfloat16 and float32 are trained, float16 is not"),
        "gradient_checkpointing": on(*at("gradient_checkpointing")),
        "gradient_checkpointing_use_reentrant": dropped("changes no result"),
        "adam_offload": on(*at("adam_offload")),
        "overlap_comm": on(*at("overlap_comm")),
        "packing_samples": on(*at("packing")),
        "flash_attn": on(*at("attention"), value="auto"),
        "attn_implementation": choice(
            at("attention"),
            {"flash_attention_2": "auto", "eager": "eager", "sdpa": "sdpa", "auto": "auto"},
            "attention is auto (flash-attn on GPUs), eager or sdpa",
        ),
        "aux_loss_coef": number(*at("aux_loss_coef")),
        "ring_attn_size": integer(*at("sequence_parallel")),
        "ring_head_stride": dropped("sequence parallelism needs no stride"),
        "adam_betas": pair(*at("optimizer.betas")),
        "adam_eps": number(*at("optimizer.eps")),
        "l2": number(*at("optimizer.weight_decay")),
        "max_norm": number(*at("optimizer.max_grad_norm")),
        "lr_warmup_ratio": number(*at("optimizer.warmup_ratio")),
        "min_lr_ratio": number(*at("optimizer.min_lr_ratio")),
        "lr_scheduler": choice(
            at("optimizer.scheduler"),
            {"cosine_with_min_lr": "cosine", "cosine": "cosine", "linear": "linear", "constant": "constant",
             "constant_with_warmup": "constant"},
            "the learning rate is constant, linear or cosine after its warm-up",
        ),
        "optim": dropped_unless("adam", "AdamW is the optimizer"),
        "lora_rank": together,
        "lora_alpha": together,
        "lora_dropout": together,
        "target_modules": together,
        "load_in_4bit": together,
        "enable_ema": together,
        "ema_beta": together,
        "ds_tensor_parallel_size": dropped_unless("1", "a learner is split by ZeRO and by sequences, not by tensors"),
        "zpg": dropped_unless("1", "ZeRO++ partitions are not used"),
        "grad_accum_dtype": dropped("gradients add up in float32"),
        "use_liger_kernel": dropped("log-probs are computed in chunks, which saves the same memory"),
        "deepcompile": dropped("compile_layers = true of the learner compiles each layer"),
        "torch_compile": dropped("compile_layers = true of the learner compiles each layer"),
        "experts_implementation": dropped("transformers chooses how experts are computed"),
        "disable_trace_cache": dropped("a DeepSpeed detail"),
        "dist_backend": dropped_unless("deepspeed", "DeepSpeed trains"),
        "actor_init_on_gpu": dropped("models are loaded where they are trained"),
        "value_head_prefix": dropped_unless("score", "the head is named score, as transformers reads it"),
        **{f"muon_{name}": dropped("AdamW is the optimizer") for name in MUON},
    }  # fmt: skip


def finish_run(draft: Draft, line: CommandLine, project: str) -> None:
    """The run's name and folder, how many checkpoints it keeps, and W&B."""
    path = Path(line.text("save_path", "./ckpt"))
    name = re.sub(r"[^A-Za-z0-9_.\-]", "-", path.name)[:64].lstrip(".") or "run"
    draft.set("name", name)
    draft.set("runs_dir", str(path.parent))
    if "save_path" in line.flags:
        draft.note(f"the model is written to {path.parent / name / 'model'}")
    if "max_ckpt_num" in line.flags:
        draft.set("checkpoint.keep", max(line.integer("max_ckpt_num", 3), 2))
    draft.settings.setdefault("seed", 42)
    draft.settings.setdefault("checkpoint", {}).setdefault("steps", 0)
    if "use_wandb" in line.flags:
        draft.set("log.wandb_project", line.text("wandb_project", project))
    elif "wandb_project" in line.flags:
        draft.drop(line.written("wandb_project"), "W&B was not used (no key)")


def finish_learner(draft: Draft, line: CommandLine, *roots: str) -> None:
    """Adapters and averages, and what OpenRLHF does without being told."""
    for root in roots:
        if draft.get(f"{root}.zero_stage") is None:
            draft.set(f"{root}.zero_stage", 2)
        if draft.get(f"{root}.optimizer.scheduler") is None:
            draft.set(f"{root}.optimizer.scheduler", "cosine")
        if (
            draft.get(f"{root}.optimizer.min_lr_ratio") is None
            and line.text("lr_scheduler", "cosine_with_min_lr") == "cosine_with_min_lr"
        ):
            draft.set(f"{root}.optimizer.min_lr_ratio", 0.1)
        if draft.get(f"{root}.optimizer.warmup_ratio") is None:
            draft.set(f"{root}.optimizer.warmup_ratio", 0.03)
        if draft.get(f"{root}.zero_stage") == 0 and draft.get(f"{root}.adam_offload"):
            draft.remove(f"{root}.adam_offload")
            draft.drop(line.written("adam_offload"), "moves ZeRO's optimizer states, and zero_stage is 0")
    _lora(draft, line, roots)
    if "enable_ema" in line.flags:
        draft.set(f"{roots[0]}.ema_decay", line.number("ema_beta", 0.992))
    elif "ema_beta" in line.flags:
        draft.drop(line.written("ema_beta"), "no average was kept (no --enable_ema)")


def _lora(draft: Draft, line: CommandLine, roots: Iterable[str]) -> None:
    names = ("lora_rank", "lora_alpha", "lora_dropout", "target_modules", "load_in_4bit")
    if line.integer("lora_rank", 0) == 0:
        for name in names[1:]:
            if name in line.flags:
                draft.drop(line.written(name), "does something only with adapters (--lora_rank)")
        return
    modules: Any = "all-linear"
    if "target_modules" in line.flags and line.flags["target_modules"].values != ["all-linear"]:
        modules = line.flags["target_modules"].values
    lora = {
        "rank": line.integer("lora_rank", 0),
        "alpha": line.number("lora_alpha", 16),
        "dropout": line.number("lora_dropout", 0),
        "target_modules": modules,
    }
    for root in roots:
        found = dict(lora)
        if "load_in_4bit" in line.flags:
            if draft.get(f"{root}.zero_stage") == 3:
                draft.set(f"{root}.zero_stage", 2)
                draft.note(f"{root}: ZeRO-3 cannot part 4-bit weights, so that zero_stage is 2")
            found["quantize_4bit"] = True
        draft.set(f"{root}.lora", found)


def data_sets(
    line: CommandLine, flag: str, probabilities: str, split: str, settings: dict[str, Any]
) -> list[dict[str, Any]]:
    """The settings of one or several data sets (`a,b`), with their shares."""
    if flag not in line.flags:
        raise ConfigError(f"--{flag} is missing: there is nothing to learn from")
    paths = [path for path in line.text(flag).split(",") if path]
    shares = [share for share in line.text(probabilities).split(",") if share]
    if shares and len(shares) != len(paths):
        raise ConfigError(f"{line.written(probabilities)}: {len(shares)} shares for {len(paths)} data sets")
    found = []
    for number_of, path in enumerate(paths):
        data = {"path": path, **settings}
        if split != "train" and not Path(path).suffix:
            data["split"] = split
        if 0 < line.integer("max_samples", NO_LIMIT) < NO_LIMIT:
            data["max_samples"] = line.integer("max_samples", NO_LIMIT)
        if len(paths) > 1 and shares:
            total = sum(float(share) for share in shares)
            data["probability"] = float(shares[number_of]) / total
        found.append(data)
    return found


def template(draft: Draft, line: CommandLine, default: str = "") -> dict[str, Any]:
    """How a prompt becomes text."""
    settings: dict[str, Any] = {}
    if "apply_chat_template" in line.flags:
        settings["apply_chat_template"] = True
        if "tokenizer_chat_template" in line.flags:
            settings["chat_template"] = line.text("tokenizer_chat_template")
    elif "tokenizer_chat_template" in line.flags:
        draft.drop(line.written("tokenizer_chat_template"), "does something only with --apply_chat_template")
    given = line.text("input_template", default) if not settings else line.text("input_template")
    if given.count("{}") == 1:
        if "\\n" in given:
            draft.note("input_template holds a backslash and an n, not a line break, as it did for OpenRLHF")
        settings["input_template"] = given
    elif "input_template" in line.flags and given.lower() not in ("", "none"):
        draft.drop(line.written("input_template"), "has no {} (or several) where the prompt goes")
    return settings


DATA: Table = {
    name: together
    for name in (
        "max_samples", "input_key", "output_key", "label_key", "prompt_key", "chosen_key", "rejected_key",
        "input_template", "apply_chat_template", "tokenizer_chat_template", "max_len", "dataset", "dataset_probs",
        "dataset_split", "eval_dataset", "eval_split", "micro_train_batch_size", "pretrain",
    )
}  # fmt: skip
