"""The frozen reference policy: log-probs of given responses, and whole distributions."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from rlctl.algorithms.distill import Told
from rlctl.core.errors import ConfigError
from rlctl.learner.batch import collate, plan
from rlctl.learner.forward import PolicyForward, split
from rlctl.learner.prompts import can_share
from rlctl.learner.sequence import Sequence
from rlctl.learner.wire import Limits
from rlctl.models.load import load_causal_lm, load_tokenizer
from rlctl.models.quantize import quantize_linears
from rlctl.models.source import resolve
from rlctl.models.vocabulary import vocabulary_digest
from rlctl.reference.config import ReferenceConfig
from rlctl.reference.distributions import distributions

#: Response tokens whose logits exist at once.
_CHUNK = 2048


class ReferenceEngine:
    """A causal language model that only looks. Not for several threads at once."""

    def __init__(self, config: ReferenceConfig) -> None:
        """Loads the model. Raises NotFoundError, ConfigError."""
        torch.set_num_threads(config.threads)
        self._config = config
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        folder = resolve(config.model)
        model = load_causal_lm(folder, config.dtype, config.attention, trust_remote_code=config.trust_remote_code)
        if config.quantize_4bit:
            quantize_linears(model, [model.get_output_embeddings()], self._device)
        self._forward = PolicyForward(model.to(self._device), _CHUNK).requires_grad_(False).eval()
        self._forward.model.get_output_embeddings().keep_wide()
        self._shared = can_share(model.config, config.packing)
        self.limits = Limits(model.config.vocab_size, model.config.max_position_embeddings)
        self._folder = folder

    @property
    def vocabulary(self) -> int:
        """Tokens of a distribution."""
        return int(self._forward.model.get_output_embeddings().weight.shape[0])

    def tokenizer_digest(self) -> str:
        """Of the vocabulary (see `vocabulary_digest`); empty where the model's folder has no tokenizer."""
        try:
            return vocabulary_digest(load_tokenizer(self._folder, self._config.trust_remote_code))
        except ConfigError:
            return ""

    @torch.inference_mode()
    def logprobs(self, sequences: Seq[Sequence], temperature: float) -> list[Tensor]:
        """`log softmax(logits / temperature)` of every response token, float32 `[T]` each, in order."""
        results: list[Tensor] = [torch.empty(0)] * len(sequences)
        packing, shared = self._config.packing, self._shared
        for indices in plan(sequences, self._config.batch_tokens, packing, shared=shared):
            chosen = [sequences[index] for index in indices]
            batch = collate(chosen, packing=packing, trained_only=False, device=self._device, shared=shared)
            outputs = self._forward(batch, temperature)[0].cpu()
            for index, part in zip(indices, split(outputs, batch), strict=True):
                results[index] = part
        return results

    @torch.inference_mode()
    def distributions(self, sequences: Seq[Sequence], temperature: float, top_k: int) -> list[Told]:
        """The distributions at the response tokens of each sequence, in order; see `rlctl.algorithms.distill.tell`."""
        results: list[Told] = [Told(torch.empty(0))] * len(sequences)
        packing, shared = self._config.packing, self._shared
        for indices in plan(sequences, self._config.batch_tokens, packing, shared=shared):
            chosen = [sequences[index] for index in indices]
            batch = collate(chosen, packing=packing, trained_only=False, device=self._device, shared=shared)
            for index, part in zip(indices, distributions(self._forward, batch, temperature, top_k), strict=True):
                results[index] = part
        return results
