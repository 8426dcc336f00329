"""From a row's prompt and response to token ids: as plain text, or as the turns of a chat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlctl.core.errors import ConfigError
from rlctl.data.config import ResponseConfig
from rlctl.data.template import (
    Message,
    check_messages,
    encode,
    encode_bare,
    kind,
    plain_text,
    prompt_messages,
    tokenizer_for,
)
from rlctl.data.turns import Chat, ChatCutter

#: Prompt ids, response ids, and which tokens of the response are learnt.
Encoded = tuple[list[int], list[int], list[bool]]


class ResponseEncoder:
    """Joins prompts with responses for one config and tokenizer. Raises ConfigError."""

    def __init__(self, config: ResponseConfig, tokenizer: Any) -> None:
        self.config = config
        self.tokenizer = tokenizer_for(config, tokenizer)
        if self.tokenizer.eos_token_id is None:
            raise ConfigError("the tokenizer has no EOS token: a response could not say that it is over")
        self._cutter = ChatCutter(self.tokenizer) if config.apply_chat_template else None

    def join(self, prompt: Any, output: Any, where: str) -> Chat:
        """A prompt and its response, each text or chat messages."""
        if self._cutter is None:
            text = plain_text(self.config, prompt, where, "the prompt")
            if not isinstance(output, str):
                raise ConfigError(f"{where}: the response is {kind(output)}; set apply_chat_template = true for chats")
            return self.continued(text, output)
        messages = prompt_messages(self.config, prompt, where)
        if messages[-1]["role"] == "assistant":
            raise ConfigError(f"{where}: the prompt ends with the assistant, and a response would be its second turn")
        turns = [{"role": "assistant", "content": output}] if isinstance(output, str) else _turns(output, where)
        return self._cutter.cut([*messages, *turns], where, first=len(messages))

    def continued(self, prompt: str, output: str) -> Chat:
        """Plain texts, one behind the other; an EOS that is written out is not written twice."""
        eos = self.tokenizer.eos_token
        return Chat(prompt, [(output.removesuffix(eos), True)], needs_eos=True)

    def whole(self, chat: Any, where: str, first: int = 0) -> Chat | None:
        """A chat whose assistant turns (from message `first` on) are learnt; None where it has none to learn.

        What follows the last of them is left out: nothing there is learnt.
        """
        assert self._cutter is not None
        messages = prompt_messages(self.config, chat, where)
        first += len(messages) - len(chat)
        last = max((index for index, message in enumerate(messages) if message["role"] == "assistant"), default=-1)
        if last < max(first, 1) or messages[0]["role"] == "assistant":
            return None
        return self._cutter.cut(messages[: last + 1], where, first=first)

    def encode(self, chats: Sequence[Chat]) -> list[Encoded]:
        """Token ids; texts are tokenised piece by piece, so that no token lies across the edge of a turn."""
        prompts = encode([chat.prompt for chat in chats], self.tokenizer, chat=self._cutter is not None)
        pieces = iter(encode_bare([text for chat in chats for text, _ in chat.parts], self.tokenizer))
        encoded = []
        for chat, prompt in zip(chats, prompts, strict=True):
            ids: list[int] = []
            mask: list[bool] = []
            for _, learnt in chat.parts:
                piece = next(pieces)
                ids += piece
                mask += [learnt] * len(piece)
            if chat.needs_eos:
                ids.append(self.tokenizer.eos_token_id)
                mask.append(True)
            encoded.append((prompt, ids, mask))
        return encoded


def response_value(value: Any, where: str, key: str) -> Any:
    """A response as text or chat messages: a number becomes text, nothing the empty text."""
    if value is None:
        return ""
    if isinstance(value, str | list):
        return value
    if isinstance(value, int | float):
        return str(value)
    raise ConfigError(f"{where}: column {key!r} is {kind(value)}; a response is text or a list of chat messages")


def is_blank(response: Any) -> bool:
    """Whether there is nothing to learn in a response."""
    if isinstance(response, list):
        return all(isinstance(turn, dict) and not (turn.get("content") or turn.get("tool_calls")) for turn in response)
    return not response


def _turns(output: Any, where: str) -> list[Message]:
    messages = check_messages(output, where, "a response")
    if not messages or messages[0]["role"] != "assistant" or messages[-1]["role"] != "assistant":
        raise ConfigError(f"{where}: a response as a chat begins and ends with the assistant")
    return messages
