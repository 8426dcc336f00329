"""A generation service for the length of a command."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlctl.clients.blocking import GenerationClient
from rlctl.core.errors import FailedPreconditionError, NotFoundError, UnavailableError
from rlctl.launch.serving import has_chat_template, serve_model
from rlctl.v1.generation_pb2 import SamplingParams
from support.tiny import tiny_llama


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny")


def test_a_folder_is_served_and_gone_afterwards(model: Path) -> None:
    assert has_chat_template(model)
    with serve_model(model) as service, GenerationClient(service.channel) as client:
        assert client.get_model().dtype == "float32"
        said = client.generate_text("2+3=", SamplingParams(max_tokens=4, temperature=0.0))
        pieces = "".join(client.stream_text("2+3=", SamplingParams(max_tokens=4, temperature=0.0)))
        assert said == [pieces]
    with GenerationClient(service.channel) as client, pytest.raises(Exception, match="generation"):
        client.ready(timeout_s=1.0)


def test_a_model_that_cannot_be_loaded_is_told_with_the_end_of_the_log(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "ghost"}')
    assert not has_chat_template(tmp_path)
    with pytest.raises(UnavailableError, match=r"(?s)ended before it served:.*"), serve_model(tmp_path):
        pass


def test_what_writes_no_text_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"has no config.json"), serve_model(tmp_path):
        pass
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForSequenceClassification"]}')
    with pytest.raises(FailedPreconditionError, match="is a reward model"), serve_model(tmp_path):
        pass
