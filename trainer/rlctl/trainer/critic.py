"""The trainer's end of the critic service."""

from __future__ import annotations

from concurrent.futures import Future

import torch

from rlctl.clients.critic import CriticClient
from rlctl.clients.requests import split
from rlctl.learner.sequence import Sequence
from rlctl.rpc.portal import Portal
from rlctl.v1 import critic_pb2, tensor_pb2

#: Tokens of one ComputeValues call, as bytes on the wire; the answer takes about twice that.
REQUEST_BYTES = 8 << 20
#: What is reported of the critic's own metrics.
METRICS = ("loss", "value_clip_fraction", "aux_loss", "grad_norm", "skipped", "learning_rate")


class CriticLink:
    """Values and training of the critic, in the background of the trainer's main thread."""

    def __init__(self, portal: Portal, client: CriticClient, fence: int) -> None:
        self._portal = portal
        self._client = client
        self._fence = fence

    def values(self, sequences: list[Sequence]) -> Future[list[torch.Tensor]]:
        """The value of the state before each response token, a tensor [T] a sequence."""
        return self._portal.spawn(self._values, [_tokens(s) for s in sequences])

    async def _values(self, tokens: list[tensor_pb2.TokenSequence]) -> list[torch.Tensor]:
        values: list[torch.Tensor] = []
        for part in split(tokens, REQUEST_BYTES):
            response = await self._client.compute_values(
                critic_pb2.ComputeValuesRequest(epoch=self._fence, sequences=part)
            )
            values.extend(torch.tensor(one.values, dtype=torch.float32) for one in response.values)
        return values

    def train(self, step: int, batches: list[list[Sequence]]) -> Future[dict[str, float]]:
        """One optimizer step a batch, in order; the result is the mean of their metrics, under `value/`."""
        return self._portal.spawn(self._train, step, batches)

    async def _train(self, step: int, batches: list[list[Sequence]]) -> dict[str, float]:
        sums: dict[str, float] = {}
        for number, batch in enumerate(batches):
            header = critic_pb2.TrainHeader(epoch=self._fence, step=step, minibatch=number, num_sequences=len(batch))
            response = await self._client.train(header, [_train_sequence(s) for s in batch])
            for name in METRICS:
                if name in response.metrics:
                    sums[f"value/{name}"] = sums.get(f"value/{name}", 0.0) + response.metrics[name] / len(batches)
        return sums

    def save(self, tag: str, keep: list[str]) -> None:
        request = critic_pb2.SaveCheckpointRequest(epoch=self._fence, tag=tag, keep=keep)
        self._portal.call(self._client.save_checkpoint, request)

    def load(self, tag: str) -> None:
        """Goes back to a tag; "" is the state at the start of the run."""
        request = critic_pb2.LoadCheckpointRequest(epoch=self._fence, tag=tag)
        self._portal.call(self._client.load_checkpoint, request)


def _tokens(sequence: Sequence) -> tensor_pb2.TokenSequence:
    return tensor_pb2.TokenSequence(
        prompt_ids=sequence.prompt_ids.tolist(), response_ids=sequence.response_ids.tolist()
    )


def _train_sequence(sequence: Sequence) -> critic_pb2.TrainSequence:
    return critic_pb2.TrainSequence(
        tokens=_tokens(sequence),
        mask=sequence.mask.int().tolist(),
        old_values=sequence.fields["old_values"].tolist(),
        returns=sequence.fields["returns"].tolist(),
    )
