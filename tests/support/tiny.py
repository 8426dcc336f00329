"""A random Llama small enough for tests, with a real tokenizer and chat template."""

from __future__ import annotations

from pathlib import Path

CHARACTERS = "0123456789+-*/=?.,:!() abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ\n"
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>"]
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def tiny_llama(folder: Path, *, tied: bool = True, seed: int = 0, hidden: int = 128, layers: int = 2) -> Path:
    """Writes model and tokenizer in Hugging Face format to `folder` (0.3 M parameters, fp32, heads of 32)."""
    import torch
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    vocab = {token: index for index, token in enumerate(SPECIAL + sorted(set(CHARACTERS)))}
    raw = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    raw.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(vocab),
            hidden_size=hidden,
            intermediate_size=2 * hidden,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=512,
            tie_word_embeddings=tied,
            initializer_range=0.06,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            dtype="float32",
        )
    )
    model.generation_config.eos_token_id = 2
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
