"""The vocabulary of a tokenizer, as a digest that two machines can compare."""

from __future__ import annotations

import hashlib
import json

from transformers import PreTrainedTokenizerBase


def vocabulary_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """SHA-256, in hexadecimal: the same where two tokenizers give every token the same id."""
    tokens = sorted((number, token) for token, number in tokenizer.get_vocab().items())
    return hashlib.sha256(json.dumps(tokens).encode()).hexdigest()
