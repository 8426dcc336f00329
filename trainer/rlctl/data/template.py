"""From a row's prompt to text and token ids: templates, chat, and special tokens written once."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rlctl.core.errors import ConfigError, NotFoundError
from rlctl.data.config import SourceConfig, TextConfig

logger = logging.getLogger(__name__)
Message = dict[str, Any]


def tokenizer_for(config: TextConfig, tokenizer: Any) -> Any:
    """The tokenizer with the chat template that is to be used: its own, or the config's on a copy.

    Raises ConfigError when the chat template that is asked for does not exist.
    """
    if config.chat_template is not None:
        tokenizer = copy.copy(tokenizer)
        tokenizer.chat_template = _template_text(config.chat_template)
    if config.apply_chat_template and not tokenizer.chat_template:
        raise ConfigError(
            "apply_chat_template: this model's tokenizer has no chat template; set chat_template, or use "
            "input_template instead"
        )
    return tokenizer


def tokenizer_to_save(configs: Iterable[SourceConfig], tokenizer: Any) -> Any:
    """The tokenizer that belongs to a model trained on these data sets: with the chat template that they put prompts
    through, so that whoever talks to the model uses the same.

    Where they use several, it is that of the first, and a warning says so.
    """
    chats = [each for each in configs if isinstance(each, TextConfig) and each.apply_chat_template]
    tokenizers = [tokenizer_for(config, tokenizer) for config in chats]
    if len({str(each.chat_template) for each in tokenizers}) > 1:
        logger.warning("the data sets use several chat templates; the model is saved with that of the first")
    return tokenizers[0] if tokenizers else tokenizer


def _template_text(given: str) -> str:
    if "{{" in given or "{%" in given:
        return given
    path = Path(given).expanduser()
    if not path.is_file():
        raise NotFoundError(f"chat_template is neither Jinja text nor a file: there is no {path}")
    return path.read_text(encoding="utf-8")


def prompt_text(config: TextConfig, value: Any, where: str, tokenizer: Any) -> str:
    """The text that the policy continues, without a BOS. `value` is text or a list of chat messages."""
    if not config.apply_chat_template:
        return plain_text(config, value, where, "the prompt")
    messages = prompt_messages(config, value, where)
    if messages[-1]["role"] == "assistant":
        raise ConfigError(f"{where}: the chat ends with the assistant; a prompt must end with a question")
    return render(messages, tokenizer, where, generation_prompt=True)


def plain_text(config: TextConfig, value: Any, where: str, what: str) -> str:
    """A prompt that goes through no chat template, `input_template` applied."""
    if isinstance(value, str):
        return value if config.input_template is None else config.input_template.replace("{}", value)
    if config.input_template is not None:
        raise ConfigError(f"{where}: input_template is for text, and {what} is {kind(value)}")
    raise ConfigError(f"{where}: {what} is {kind(value)}; set apply_chat_template = true for chats")


def prompt_messages(config: TextConfig, value: Any, where: str) -> list[Message]:
    """A prompt as chat messages: text becomes the user's, and the system prompt goes in front."""
    if isinstance(value, str):
        value = [{"role": "user", "content": plain_text(config, value, where, "the prompt")}]
    elif config.input_template is not None:
        raise ConfigError(f"{where}: input_template is for text, and the prompt is {kind(value)}")
    messages = check_messages(value, where, "a prompt")
    if config.system_prompt is not None:
        messages = [{"role": "system", "content": config.system_prompt}, *messages]
    return messages


def render(messages: Sequence[Message], tokenizer: Any, where: str, *, generation_prompt: bool) -> str:
    """A chat as the tokenizer's template writes it, without a BOS. Raises ConfigError where the template refuses."""
    import jinja2

    try:
        chat = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=generation_prompt)
    except (jinja2.TemplateError, TypeError) as error:
        raise ConfigError(f"{where}: the chat template refuses this chat: {error}") from None
    return str(chat).removeprefix(tokenizer.bos_token or "")


def encode(texts: Sequence[str], tokenizer: Any, *, chat: bool) -> list[list[int]]:
    """Token ids of prompts.

    The tokenizer's own BOS is put once: by the tokenizer for plain text, and for chats where the template
    writes it. An EOS that a tokenizer appends by itself is taken off: the policy must go on.
    """
    bos, eos = tokenizer.bos_token, tokenizer.eos_token
    if not texts:
        return []
    if chat:
        prefix = bos if bos and _template_writes_bos(tokenizer) else ""
        return [list(ids) for ids in tokenizer([prefix + text for text in texts], add_special_tokens=False).input_ids]
    bare = [text.removeprefix(bos) if bos else text for text in texts]
    encoded = []
    for text, ids in zip(texts, tokenizer(bare).input_ids, strict=True):
        ids = list(ids)
        if bos and text.startswith(bos) and (not ids or ids[0] != tokenizer.bos_token_id):
            ids = [tokenizer.bos_token_id, *ids]
        if eos and len(ids) > 1 and ids[-1] == tokenizer.eos_token_id and not text.endswith(eos):
            ids = ids[:-1]
        encoded.append(ids)
    return encoded


def encode_bare(texts: Sequence[str], tokenizer: Any) -> list[list[int]]:
    """Token ids of texts that stand behind others: without BOS and EOS."""
    return [list(ids) for ids in tokenizer(list(texts), add_special_tokens=False).input_ids] if texts else []


def _template_writes_bos(tokenizer: Any) -> bool:
    message = [{"role": "user", "content": "x"}]
    return str(tokenizer.apply_chat_template(message, tokenize=False)).startswith(tokenizer.bos_token)


def check_messages(value: Any, where: str, what: str) -> list[Message]:
    """`value` as chat messages; ConfigError names the place and what is wrong."""
    if not isinstance(value, list):
        raise ConfigError(f"{where}: {what} is text or a list of chat messages, not {kind(value)}")
    for message in value:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str) or "content" not in message:
            raise ConfigError(f"{where}: each chat message needs 'role' and 'content'")
        content = message["content"]
        if not isinstance(content, str | list) and not message.get("tool_calls"):
            raise ConfigError(f"{where}: the content of a chat message is text, not {kind(content)}")
    return value


def kind(value: Any) -> str:
    """What a value is, in words for an error."""
    if value is None:
        return "empty"
    return "a chat" if isinstance(value, list) else f"of type {type(value).__name__}"
