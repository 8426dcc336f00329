"""Random mixtures of experts small enough for tests."""

from __future__ import annotations

from pathlib import Path


def tiny_moe(folder: Path, kind: str = "mixtral", seed: int = 0, hidden: int = 32, vocabulary: int = 64) -> Path:
    """Writes a Mixtral, Qwen3-MoE, Qwen2-MoE or OLMoE of 4 experts, 2 a token, in fp32 (no tokenizer)."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": 3 * hidden // 2,
        "moe_intermediate_size": 3 * hidden // 2,
        "shared_expert_intermediate_size": 3 * hidden // 2,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": hidden // 4,
        "num_experts": 4,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "max_position_embeddings": 256,
        "initializer_range": 0.2,
        "sliding_window": None,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "bos_token_id": 1,
    }
    config = AutoConfig.for_model(kind)
    config = type(config)(**{name: value for name, value in sizes.items() if hasattr(config, name)}, dtype="float32")
    torch.manual_seed(seed)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder
