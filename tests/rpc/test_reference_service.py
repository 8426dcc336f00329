"""The reference service over a real server: what it answers equals plain transformers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rlctl.clients.reference import ReferenceClient
from rlctl.core.errors import InvalidArgumentError, NotFoundError
from rlctl.reference.config import ReferenceConfig
from rlctl.reference.servicer import ReferenceHosted
from rlctl.rpc.config import ChannelConfig, ServerConfig
from rlctl.rpc.pool import Pool
from rlctl.rpc.service import start
from rlctl.v1.reference_pb2 import ComputeLogprobsRequest
from rlctl.v1.tensor_pb2 import TokenSequence
from support.tiny import tiny_llama

pytestmark = pytest.mark.anyio

SEQUENCES = [([1, 20, 21], [30, 31, 2]), ([1], [44]), ([1, 9, 9, 9, 9, 9], [12, 13]), ([5, 6], [7, 8, 9, 10, 11, 2])]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("reference"))


@pytest.fixture
async def client(model: Path) -> AsyncIterator[ReferenceClient]:
    config = ReferenceConfig(model=str(model), dtype="float32", batch_tokens=64, batch_wait_ms=20)
    service = await start("reference", ServerConfig(metrics_listen=None), ReferenceHosted(config))
    pool = Pool("reference", ChannelConfig(addresses=[service.address], timeout_s=30))
    yield ReferenceClient(pool)
    await pool.close()
    await service.stop()


def request(sequences: list[tuple[list[int], list[int]]], temperature: float = 1.0) -> ComputeLogprobsRequest:
    tokens = [TokenSequence(prompt_ids=prompt, response_ids=response) for prompt, response in sequences]
    return ComputeLogprobsRequest(sequences=tokens, temperature=temperature)


def expected(model: Path, prompt: list[int], response: list[int], temperature: float) -> Tensor:
    from transformers import AutoModelForCausalLM

    plain = AutoModelForCausalLM.from_pretrained(model)
    with torch.no_grad():
        logits = plain(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1] / temperature
    return logits.log_softmax(-1).gather(-1, torch.tensor(response).unsqueeze(-1)).squeeze(-1)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
async def test_logprobs_equal_those_of_the_sequences_alone(
    client: ReferenceClient, model: Path, temperature: float
) -> None:
    answer = await client.compute_logprobs(request(SEQUENCES, temperature))
    assert len(answer.logprobs) == len(SEQUENCES)
    for (prompt, response), given in zip(SEQUENCES, answer.logprobs, strict=True):
        wanted = expected(model, prompt, response, temperature)
        torch.testing.assert_close(torch.tensor(list(given.values)), wanted, rtol=1e-5, atol=1e-5)


async def test_concurrent_requests_of_different_temperatures_get_their_own_answers(
    client: ReferenceClient, model: Path
) -> None:
    temperatures = [1.0, 0.5, 1.0, 2.0]
    calls = [client.compute_logprobs(request([s], t)) for s, t in zip(SEQUENCES, temperatures, strict=True)]
    for answer, (prompt, response), temperature in zip(
        await asyncio.gather(*calls), SEQUENCES, temperatures, strict=True
    ):
        wanted = expected(model, prompt, response, temperature)
        torch.testing.assert_close(torch.tensor(list(answer.logprobs[0].values)), wanted, rtol=1e-5, atol=1e-5)


async def test_no_sequences_give_no_logprobs(client: ReferenceClient) -> None:
    assert list((await client.compute_logprobs(request([]))).logprobs) == []


@pytest.mark.parametrize(
    "sequences, temperature, field",
    [
        ([([1], [2])], 0.0, "temperature"),
        ([([1], [2]), ([], [2])], 1.0, "sequences[1].prompt_ids"),
        ([([1], [])], 1.0, "sequences[0].response_ids"),
        ([([1], [99999])], 1.0, "sequences[0].response_ids"),
        ([([1] * 500, [2] * 100)], 1.0, "sequences[0]"),
    ],
)
async def test_bad_input_names_its_field(
    client: ReferenceClient, sequences: list[tuple[list[int], list[int]]], temperature: float, field: str
) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        await client.compute_logprobs(request(sequences, temperature))
    assert caught.value.metadata["field"] == field
    assert len((await client.compute_logprobs(request(SEQUENCES[:1]))).logprobs) == 1


async def test_missing_model_is_told_by_name(tmp_path: Path) -> None:
    config = ReferenceConfig(model=str(tmp_path / "nowhere"))
    with pytest.raises(NotFoundError, match="nowhere"):
        await start("reference", ServerConfig(metrics_listen=None), ReferenceHosted(config))
