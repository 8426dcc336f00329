"""The frozen model that preferences are learnt against: its log-prob of each response, as a scalar of its sequence."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence as Seq
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from rlctl.learner import distributed
from rlctl.learner.batch import share_out
from rlctl.learner.config import LearnerConfig
from rlctl.learner.sequence import Sequence
from rlctl.offline.config import ReferenceOptions
from rlctl.offline.objective import Item, size
from rlctl.reference.config import ReferenceConfig
from rlctl.reference.engine import ReferenceEngine

#: Scalar of a sequence: the summed log-prob of its trained tokens under the reference.
REFERENCE = "reference"


class Reference:
    """On every rank: sums of log-probs under the frozen model."""

    def __init__(self, options: ReferenceOptions, model: str, learner: LearnerConfig, folder: Path) -> None:
        """`model` is the run's own, for options without one; what is precomputed is kept in `folder`."""
        self._options = options
        self._folder = folder
        self._config = ReferenceConfig(
            model=options.model or model,
            dtype=learner.dtype,
            quantize_4bit=not options.model and learner.lora is not None and learner.lora.quantize_4bit,
            attention=learner.attention,
            packing=learner.packing,
            batch_tokens=options.batch_tokens,
            threads=learner.threads,
            trust_remote_code=learner.trust_remote_code,
        )
        self._engine: ReferenceEngine | None = None

    @property
    def precomputes(self) -> bool:
        return self._options.precompute

    def add(self, sequences: Seq[Sequence]) -> list[Sequence]:
        """These sequences with the scalar; those that have it already are taken as they are."""
        missing = [s for s in sequences if REFERENCE not in s.scalars]
        if not missing:
            return list(sequences)
        sums = iter(self.sums(missing))
        return [s if REFERENCE in s.scalars else with_reference(s, next(sums)) for s in sequences]

    def sums(self, sequences: Seq[Sequence]) -> list[float]:
        """The summed log-prob of each sequence's trained tokens."""
        if self._engine is None:
            self._engine = ReferenceEngine(self._config)
        logprobs = self._engine.logprobs(sequences, 1.0)
        return [float(each[s.mask].double().sum()) for each, s in zip(logprobs, sequences, strict=True)]

    def precompute(self, items: Seq[Item]) -> None:
        """Gives every sequence its scalar, in place; all ranks call it, each computes its share.

        The numbers are kept in the run's folder under a digest of the sequences, so that a run that is gone on with
        has the very same ones. The model is let go.
        """
        kept = self._folder / f"reference-{digest(items, self._config.model)}.safetensors"
        if kept.is_file():
            sums = load_file(kept)["sums"]
        else:
            sums = self._computed(items)
            if distributed.rank() == 0:
                aside = kept.with_suffix(".tmp")
                save_file({"sums": sums}, aside)
                aside.rename(kept)
            distributed.barrier()
        self._engine = None
        numbers = iter(sums.tolist())
        for item in items:
            item[:] = [with_reference(s, next(numbers)) for s in item]

    def _computed(self, items: Seq[Item]) -> Tensor:
        shares = share_out(list(map(size, items)), distributed.world_size())
        mine = [items[index] for index in shares[distributed.rank()]]
        sums = torch.tensor(self.sums([s for item in mine for s in item]))
        places = [0, *torch.tensor([len(item) for item in items]).cumsum(0).tolist()]
        whole = torch.zeros(places[-1])
        for share, (part,) in zip(shares, distributed.gather_ragged([sums]), strict=True):
            slots = [slot for index in share for slot in range(places[index], places[index + 1])]
            whole[slots] = part
        return whole


def with_reference(sequence: Sequence, value: float) -> Sequence:
    return replace(sequence, scalars=sequence.scalars | {REFERENCE: value})


def digest(items: Seq[Item], model: str) -> str:
    """Of the model's name and all tokens, in their order."""
    found = hashlib.sha256(model.encode())
    for item in items:
        for s in item:
            found.update(s.prompt_ids.numpy().tobytes() + b"|" + s.response_ids.numpy().tobytes() + b"/")
            found.update(s.mask.numpy().tobytes())
    return found.hexdigest()[:16]
