"""From a row's prompt to text and token ids: templates, chat, and special tokens written once."""

from __future__ import annotations

from typing import Any

from rlctl.core.errors import ConfigError
from rlctl.data.config import DataConfig


def check_tokenizer(config: DataConfig, tokenizer: Any) -> None:
    """ConfigError when the chat template that is asked for does not exist."""
    if config.apply_chat_template and not tokenizer.chat_template:
        raise ConfigError(
            "apply_chat_template: this model's tokenizer has no chat template; use input_template instead"
        )


def prompt_text(config: DataConfig, value: Any, where: str, tokenizer: Any) -> str:
    """The text that the policy continues, without a BOS. `value` is text or a list of chat messages."""
    if isinstance(value, str):
        text = value if config.input_template is None else config.input_template.replace("{}", value)
        if not config.apply_chat_template:
            return text
        value = [{"role": "user", "content": text}]
    elif config.input_template is not None:
        raise ConfigError(f"{where}: input_template is for text, and this prompt is {_kind(value)}")
    elif not config.apply_chat_template:
        raise ConfigError(f"{where}: the prompt is {_kind(value)}; set apply_chat_template = true for chats")
    messages = _messages(value, where)
    if config.system_prompt is not None:
        messages = [{"role": "system", "content": config.system_prompt}, *messages]
    if messages[-1]["role"] == "assistant":
        raise ConfigError(f"{where}: the chat ends with the assistant; a prompt must end with a question")
    chat = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return str(chat).removeprefix(tokenizer.bos_token or "")


def encode(texts: list[str], tokenizer: Any, *, chat: bool) -> list[list[int]]:
    """Token ids of prompts.

    The tokenizer's own BOS is put once: by the tokenizer for plain text, and for chats where the template
    writes it. An EOS that a tokenizer appends by itself is taken off: the policy must go on.
    """
    bos, eos = tokenizer.bos_token, tokenizer.eos_token
    if chat:
        prefix = bos if bos and _template_writes_bos(tokenizer) else ""
        return [list(ids) for ids in tokenizer([prefix + text for text in texts], add_special_tokens=False).input_ids]
    bare = [text.removeprefix(bos) if bos else text for text in texts]
    encoded = []
    for text, ids in zip(texts, tokenizer(bare).input_ids if bare else [], strict=True):
        ids = list(ids)
        if bos and text.startswith(bos) and (not ids or ids[0] != tokenizer.bos_token_id):
            ids = [tokenizer.bos_token_id, *ids]
        if eos and len(ids) > 1 and ids[-1] == tokenizer.eos_token_id and not text.endswith(eos):
            ids = ids[:-1]
        encoded.append(ids)
    return encoded


def _template_writes_bos(tokenizer: Any) -> bool:
    message = [{"role": "user", "content": "x"}]
    return str(tokenizer.apply_chat_template(message, tokenize=False)).startswith(tokenizer.bos_token)


def _messages(value: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise ConfigError(f"{where}: a prompt is text or a list of chat messages, not {_kind(value)}")
    for message in value:
        if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
            raise ConfigError(f"{where}: each chat message needs 'role' and 'content'")
    return value


def _kind(value: Any) -> str:
    return "a chat" if isinstance(value, list) else f"of type {type(value).__name__}"
