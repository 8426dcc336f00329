"""Rewards of a Hugging Face sequence classifier with one output.

Shapes: B responses of a batch, T its longest sequence.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from rlctl.core.errors import ConfigError
from rlctl.models.load import load_reward_model, load_tokenizer
from rlctl.models.source import resolve
from rlctl.reward.scorer import Item, Outcome, finite


class ModelScorer:
    """Tokenises prompt and response with the reward model's own tokenizer, and ends them with its EOS.

    A special token's name in a response is text like any other. The score is the model's output at the last token;
    `normalize` standardises it with `mean` and `std` of the model's config.
    """

    def __init__(
        self, model: str, dtype: Any, *, max_length: int, batch_tokens: int, normalize: bool, trust_remote_code: bool
    ) -> None:
        self._name = model
        self._dtype = dtype
        self._max_length = max_length
        self._batch_tokens = batch_tokens
        self._normalize = normalize
        self._trust_remote_code = trust_remote_code
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="reward-model")

    async def load(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._load)

    async def score(self, items: list[Item]) -> list[Outcome]:
        loop = asyncio.get_running_loop()
        sequences = await loop.run_in_executor(self._thread, lambda: [self._encode(item) for item in items])
        rewards = [0.0] * len(items)
        for batch in batches([len(ids) for ids in sequences], self._batch_tokens):
            # One batch at a time, so that a call that was given up ends soon.
            values = await loop.run_in_executor(self._thread, self._forward, [sequences[index] for index in batch])
            for index, value in zip(batch, values, strict=True):
                rewards[index] = (value - self._mean) / self._std
        return [finite(reward) for reward in rewards]

    async def close(self) -> None:
        await asyncio.to_thread(self._thread.shutdown, wait=True, cancel_futures=True)

    def _load(self) -> None:
        path = resolve(self._name)
        self._tokenizer: Any = load_tokenizer(path, self._trust_remote_code)
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        model: Any = load_reward_model(path, self._dtype, self._trust_remote_code)
        self._model = model.to(self._device)
        config = model.config
        self._mean, self._std = 0.0, 1.0
        if self._normalize:
            mean, std = getattr(config, "mean", None), getattr(config, "std", None)
            if mean is None or std is None or not std > 0:
                raise ConfigError(
                    f"{self._name}: normalize needs the mean and std (above 0) of the model's rewards in its "
                    "config.json; train it with rlctl, add them, or set normalize = false"
                )
            self._mean, self._std = float(mean), float(std)
        self._max_length = min(self._max_length, getattr(config, "max_position_embeddings", self._max_length))
        # The classifier reads the rightmost token that is not the pad, so the pad must differ from the EOS.
        pad, eos = self._tokenizer.pad_token_id, self._tokenizer.eos_token_id
        self._pad: int = pad if pad is not None and pad != eos else int(eos == 0)
        config.pad_token_id = self._pad

    def _encode(self, item: Item) -> list[int]:
        eos = self._tokenizer.eos_token_id
        prompt = list(self._tokenizer(item.prompt).input_ids)
        if prompt and prompt[-1] == eos:
            prompt.pop()
        response = self._tokenizer(item.response, add_special_tokens=False, split_special_tokens=True).input_ids
        ids = [*prompt, *response] if eos is None else [*prompt, *response, eos]
        if len(ids) <= self._max_length:
            return ids
        start = [ids[0]] if ids[0] == self._tokenizer.bos_token_id else []
        return start + ids[len(ids) - self._max_length + len(start) :]

    @torch.inference_mode()
    def _forward(self, sequences: list[list[int]]) -> list[float]:
        longest = max(map(len, sequences))
        ids_BT = torch.full((len(sequences), longest), self._pad)
        mask_BT = torch.zeros_like(ids_BT)
        for row, ids in enumerate(sequences):
            ids_BT[row, : len(ids)] = torch.tensor(ids)
            mask_BT[row, : len(ids)] = 1
        output = self._model(input_ids=ids_BT.to(self._device), attention_mask=mask_BT.to(self._device))
        return output.logits.float().reshape(len(sequences)).tolist()


def batches(lengths: list[int], budget: int) -> list[list[int]]:
    """Indices in batches of like length, each of at most `budget` padded tokens (or of one sequence)."""
    found: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda index: lengths[index]):
        if found and (len(found[-1]) + 1) * lengths[index] <= budget:
            found[-1].append(index)
        else:
            found.append([index])
    return found
