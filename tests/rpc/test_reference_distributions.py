"""Whole distributions from the reference service over a real server: they equal those of plain transformers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlctl.clients.reference import ReferenceClient
from rlctl.core.errors import (
    AuthenticationError,
    FailedPreconditionError,
    InvalidArgumentError,
    ResourceExhaustedError,
)
from rlctl.reference.config import ReferenceConfig
from rlctl.reference.servicer import ReferenceHosted
from rlctl.rpc import codec
from rlctl.rpc.config import ChannelConfig, ServerConfig
from rlctl.rpc.pool import Pool
from rlctl.rpc.service import start
from rlctl.v1 import tensor_pb2
from rlctl.v1.reference_pb2 import ComputeDistributionsRequest
from rlctl.v1.reference_pb2_grpc import ReferenceServiceStub
from support.certificates import Authority
from support.tiny import tiny_llama

pytestmark = pytest.mark.anyio

#: Two share a prompt.
SEQUENCES = [([1, 20, 21], [30, 31, 2]), ([1], [44]), ([5, 6], [12, 13]), ([5, 6], [7, 8, 9, 10, 11, 2])]
#: Tokens of the model with the wide vocabulary.
WIDE = 3000


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("teacher"))


@pytest.fixture(scope="module")
def wide(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a vocabulary of which a response takes megabytes."""
    folder = tmp_path_factory.mktemp("wide")
    loaded = AutoModelForCausalLM.from_pretrained(model)
    torch.manual_seed(0)
    loaded.resize_token_embeddings(WIDE)
    loaded.save_pretrained(folder)
    return folder


class Counting(ReferenceHosted):
    """Keeps how many sequences came in each call."""

    def __init__(self, config: ReferenceConfig) -> None:
        super().__init__(config)
        self.calls: list[int] = []

    async def ComputeDistributions(self, request: ComputeDistributionsRequest, context: Any) -> Any:
        self.calls.append(len(request.sequences))
        return await super().ComputeDistributions(request, context)


class Served:
    """Services that end with the test, and clients of theirs."""

    def __init__(self) -> None:
        self._closing: list[Any] = []

    async def __call__(self, model: Path, **server: Any) -> tuple[Counting, str]:
        settings = ServerConfig.model_validate({"metrics_listen": None} | server)
        config = ReferenceConfig(model=str(model), dtype="float32", batch_tokens=64, batch_wait_ms=20, server=settings)
        hosted = Counting(config)
        service = await start("reference", settings, hosted)
        self._closing.append(service.stop)
        return hosted, service.address

    def client(self, address: str, **channel: Any) -> ReferenceClient:
        pool = Pool("reference", ChannelConfig.model_validate({"addresses": [address], "timeout_s": 30} | channel))
        self._closing.append(pool.close)
        return ReferenceClient(pool)

    async def close(self) -> None:
        for close in reversed(self._closing):
            await close()


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    found = Served()
    yield found
    await found.close()


def request(sequences: list[tuple[list[int], list[int]]], **settings: Any) -> ComputeDistributionsRequest:
    tokens = [tensor_pb2.TokenSequence(prompt_ids=prompt, response_ids=response) for prompt, response in sequences]
    return ComputeDistributionsRequest(sequences=tokens, **({"temperature": 1.0} | settings))


def expected(model: Path, prompt: list[int], response: list[int], temperature: float = 1.0) -> Tensor:
    plain = AutoModelForCausalLM.from_pretrained(model)
    with torch.no_grad():
        logits = plain(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1] / temperature
    return logits.log_softmax(-1)


def table(message: tensor_pb2.Tensor) -> Tensor:
    values = codec.decode(message)
    return torch.from_numpy(codec.bfloat16_to_float32(values) if values.dtype == np.uint16 else values.copy())


@pytest.mark.parametrize("top_k", [0, 80, 4000])
async def test_all_tokens_are_told_in_the_order_of_their_ids(served: Served, model: Path, top_k: int) -> None:
    _, address = await served(model)
    answers = await served.client(address).compute_distributions(request(SEQUENCES, temperature=0.7, top_k=top_k))
    assert len(answers) == len(SEQUENCES)
    for (prompt, response), given in zip(SEQUENCES, answers, strict=True):
        wanted = expected(model, prompt, response, 0.7)
        torch.testing.assert_close(table(given.logprobs), wanted, rtol=1e-5, atol=1e-5)
        assert not given.HasField("token_ids") and not given.HasField("tail_logmass")


@pytest.mark.parametrize("dtype, atol", [(tensor_pb2.D_TYPE_UNSPECIFIED, 1e-5), (tensor_pb2.D_TYPE_BFLOAT16, 0.02)])
async def test_the_likeliest_are_told_and_the_mass_of_the_others(
    served: Served, model: Path, dtype: tensor_pb2.DType, atol: float
) -> None:
    _, address = await served(model)
    answers = await served.client(address).compute_distributions(request(SEQUENCES, top_k=5, dtype=dtype))
    for (prompt, response), given in zip(SEQUENCES, answers, strict=True):
        ordered = expected(model, prompt, response).sort(descending=True)
        ids, logprobs, tail = (table(each) for each in (given.token_ids, given.logprobs, given.tail_logmass))
        assert ids.tolist() == ordered.indices[:, :5].tolist()
        torch.testing.assert_close(logprobs, ordered.values[:, :5], rtol=0, atol=atol)
        # The tail is float32 whatever the log-probs are.
        torch.testing.assert_close(tail, ordered.values[:, 5:].exp().sum(-1).log(), rtol=1e-5, atol=1e-5)


async def test_requests_that_meet_get_their_own_answers(served: Served, model: Path) -> None:
    """Distributions of different temperatures and widths, and log-probs, share one model."""
    _, address = await served(model)
    client = served.client(address)
    asked = [(1.0, 3), (0.5, 3), (1.0, 0), (1.0, 3)]
    answers = await asyncio.gather(
        *(
            client.compute_distributions(request([sequence], temperature=temperature, top_k=top_k))
            for sequence, (temperature, top_k) in zip(SEQUENCES, asked, strict=True)
        )
    )
    for (prompt, response), (temperature, top_k), (given,) in zip(SEQUENCES, asked, answers, strict=True):
        wanted = expected(model, prompt, response, temperature)
        wanted = wanted.topk(top_k).values if top_k else wanted
        torch.testing.assert_close(table(given.logprobs), wanted, rtol=1e-5, atol=1e-5)


async def test_a_request_is_split_to_fit_messages(served: Served, wide: Path) -> None:
    """A response of 40 tokens takes 40 * 3000 * 4 bytes: two of them fit in 1 MiB, and one part has the odd one."""
    hosted, address = await served(wide, max_message_mb=1)
    sequences = [([1, number], [4 + number] * 40) for number in range(5)]
    answers = await served.client(address).compute_distributions(request(sequences))
    assert sorted(hosted.calls) == [1, 2, 2]
    for (prompt, response), given in zip(sequences, answers, strict=True):
        torch.testing.assert_close(table(given.logprobs), expected(wide, prompt, response), rtol=1e-5, atol=1e-5)


async def test_what_cannot_fit_is_refused_with_the_mend(served: Served, wide: Path) -> None:
    hosted, address = await served(wide, max_message_mb=1)
    client = served.client(address)
    long = request([([1], [5]), ([1], [5] * 100)])
    with pytest.raises(
        ResourceExhaustedError, match=r"sequences\[1\] \(100 response tokens\): .*3,000 tokens"
    ) as caught:
        await client.compute_distributions(long)
    assert "a message holds 0.999 MiB. Set a smaller top_k (0 is all tokens)" in caught.value.message
    assert hosted.calls == []
    # The service says so itself to a client that does not look.
    with pytest.raises(ResourceExhaustedError, match=r"take 1\.156 MiB; a message holds 1 MiB"):
        await client.pool.call(ReferenceServiceStub, "ComputeDistributions", long)
    assert len(await client.compute_distributions(request([([1], [5] * 100)], top_k=64))) == 1
    half = request([([1], [5] * 100)], dtype=tensor_pb2.D_TYPE_BFLOAT16)
    assert len(await client.compute_distributions(half)) == 1


@pytest.mark.parametrize(
    "settings, error, field",
    [
        ({"temperature": 0.0}, InvalidArgumentError, "temperature"),
        ({"dtype": tensor_pb2.D_TYPE_INT64}, InvalidArgumentError, "dtype"),
        ({"tokenizer_digest": "0" * 64}, FailedPreconditionError, "tokenizer_digest"),
    ],
)
async def test_bad_input_names_its_field(
    served: Served, model: Path, settings: dict[str, Any], error: type[Exception], field: str
) -> None:
    _, address = await served(model)
    client = served.client(address)
    with pytest.raises(error, match=field):
        await client.compute_distributions(request(SEQUENCES, **settings))
    with pytest.raises(InvalidArgumentError, match=r"sequences\[1\]\.response_ids"):
        await client.compute_distributions(request([([1], [2]), ([1], [])], **{"top_k": 3}))
    assert await client.compute_distributions(request([])) == []


async def test_the_service_tells_its_model(served: Served, model: Path, wide: Path, tmp_path: Path) -> None:
    """Two tokenizers have one digest where every token has the same id."""
    _, address = await served(model, max_message_mb=3)
    info = await served.client(address).get_reference_info()
    assert (info.model, info.dtype, info.vocab_size, info.max_length) == (str(model), "float32", 80, 512)
    assert info.max_message_bytes == 3 << 20
    again = tiny_llama(tmp_path / "again", seed=3)
    _, other = await served(again)
    assert (await served.client(other).get_reference_info()).tokenizer_digest == info.tokenizer_digest != ""
    more = AutoTokenizer.from_pretrained(again)
    more.add_tokens(["<new>"])
    more.save_pretrained(again)
    _, other = await served(again)
    changed = (await served.client(other).get_reference_info()).tokenizer_digest
    assert changed not in ("", info.tokenizer_digest)
    given = request(SEQUENCES, tokenizer_digest=changed, top_k=1)
    assert len(await served.client(other).compute_distributions(given)) == len(SEQUENCES)


async def test_over_tls_with_a_token(served: Served, model: Path, authority: Authority, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a-secret")
    pair = authority.issue("teacher")
    tls = {"cert": pair.cert, "key": pair.key}
    _, address = await served(model, listen="0.0.0.0:0", tls=tls, token_file=token)
    address, known = address.replace("0.0.0.0", "127.0.0.1"), {"ca": authority.cert}
    client = served.client(address, tls=known, token_file=token)
    assert len(await client.compute_distributions(request(SEQUENCES, top_k=2))) == len(SEQUENCES)
    with pytest.raises(AuthenticationError):
        await served.client(address, tls=known).compute_distributions(request(SEQUENCES, top_k=2))
