"""A tiny model, shared by the tests of a module."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from support.tiny import tiny_llama


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
