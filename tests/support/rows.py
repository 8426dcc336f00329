"""Data files and tokenizers for tests of data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_rows(path: Path, rows: list[Any]) -> str:
    """Writes rows as jsonl; returns the path as text."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def chatml(tokenizer: Any) -> Any:
    """A copy of a tokenizer that ends turns with `<|im_end|>`, its EOS being another token, and writes no BOS."""
    import copy

    found = copy.deepcopy(tokenizer)
    found.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    found.chat_template = CHATML
    return found


def learnt(tokenizer: Any, example: Any) -> list[str]:
    """The stretches of a response that are learnt, as text."""
    stretches: list[list[int]] = []
    before = False
    for token, now in zip(example.response_ids, example.mask, strict=True):
        if now and not before:
            stretches.append([])
        if now:
            stretches[-1].append(token)
        before = now
    return [tokenizer.decode(stretch) for stretch in stretches]
