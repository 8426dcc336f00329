"""Prompts with the responses to learn, as token ids."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rlctl.core.errors import ConfigError
from rlctl.data.config import SupervisedDataConfig
from rlctl.data.prompts import as_text, cap, fit, input_key, label_of, select_rows
from rlctl.data.template import check_tokenizer, encode, prompt_text


@dataclass(frozen=True)
class Example:
    """A prompt and the response to learn; `response_ids` end with EOS."""

    prompt_ids: list[int]
    response_ids: list[int]


@dataclass(frozen=True)
class SupervisedDataset:
    """Examples that passed the filters; `counts` as of `PromptDataset`, with `empty_response` and
    `response_too_long`."""

    examples: list[Example]
    counts: dict[str, int]

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> Example:
        return self.examples[index]

    def __iter__(self) -> Iterator[Example]:
        return iter(self.examples)


def load_supervised(config: SupervisedDataConfig, tokenizer: Any) -> SupervisedDataset:
    """Reads, filters and tokenises prompts and responses. Raises ConfigError, NotFoundError, UnavailableError."""
    check_tokenizer(config, tokenizer)
    if tokenizer.eos_token_id is None:
        raise ConfigError("the tokenizer has no EOS token: a response could not say that it is over")
    counts: dict[str, int] = {}
    rows = select_rows(config, counts)
    counts.update(empty_response=0, response_too_long=0)
    texts = [prompt_text(config, row.values[input_key(config, row)], row.where, tokenizer) for row in rows]
    outputs = [
        as_text(row.column(config.output_key, "output_key")) if config.output_key else label_of(config, row)
        for row in rows
    ]
    prompt_ids = encode(texts, tokenizer, chat=config.apply_chat_template)
    output_ids = tokenizer(outputs, add_special_tokens=False).input_ids if outputs else []
    examples = []
    for prompt, output in zip(prompt_ids, output_ids, strict=True):
        if not output:
            counts["empty_response"] += 1
            continue
        response = [*output, tokenizer.eos_token_id]
        if len(response) > config.max_response_len:
            counts["response_too_long"] += 1
            continue
        fitted = fit(prompt, config, tokenizer, counts)
        if fitted is not None:
            examples.append(Example(fitted, response))
    return SupervisedDataset(cap(examples, config, counts), counts)
