"""PTX mixing (Ouyang et al., 2022): each optimizer step of the policy also learns a batch of given examples."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from rlctl.data.mix import mix
from rlctl.data.supervised import Example, load_supervised
from rlctl.learner.batch import share_out
from rlctl.learner.loss import Part
from rlctl.learner.sequence import Sequence
from rlctl.trainer.config import PTXConfig
from rlctl.trainer.objective import ptx_objective

_FILE = "ptx.json"


class PretrainMix:
    """The examples, and where training stands in them. Every rank has all and draws the same."""

    def __init__(self, config: PTXConfig, tokenizer: PreTrainedTokenizerBase, seed: int) -> None:
        """Reads the data. Raises what reading raises."""
        data = mix(config.data, lambda each: load_supervised(each, tokenizer))
        self._config = config
        self._sequences = [_sequence(example) for example in data.items]
        self._cursor = data.cursor(config.shuffle, seed)

    def draw(self, rank: int, ranks: int) -> Part:
        """This rank's share of the next batch."""
        batch = [self._sequences[position.index] for position in self._cursor.take(self._config.batch_size)]
        mine = share_out([len(sequence) for sequence in batch], ranks)[rank]
        return Part([batch[index] for index in mine], ptx_objective(self._config.coef))

    def save(self, folder: Path) -> None:
        """Writes where training stands beside the learner's files (one rank is enough)."""
        (folder / _FILE).write_text(json.dumps(self._cursor.state()))

    def load(self, folder: Path) -> None:
        """Goes back there; a checkpoint of a run without mixing is the start of the data.

        Raises FailedPreconditionError when the data is another.
        """
        if (folder / _FILE).is_file():
            self._cursor.restore(json.loads((folder / _FILE).read_text()))


def _sequence(example: Example) -> Sequence:
    return Sequence(
        torch.tensor(example.prompt_ids, dtype=torch.int64),
        torch.tensor(example.response_ids, dtype=torch.int64),
        torch.tensor(example.mask, dtype=torch.bool),
    )
