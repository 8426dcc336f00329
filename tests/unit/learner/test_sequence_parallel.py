"""Two ranks that share sequences, experts or adapters come to what one rank comes to."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from rlctl.core.errors import ConfigError
from rlctl.learner.config import LearnerConfig
from rlctl.models.sequence_parallel import spread_heads
from support.parallel_rank import CASES, IN_GROUPS
from support.ranks import ROOT, run_ranks
from support.tiny import tiny_llama
from support.tiny_moe import tiny_moe

pytestmark = pytest.mark.timeout(600)
SCRIPT = ROOT / "tests" / "support" / "parallel_rank.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parallel")
    tiny_llama(folder / "llama", hidden=32)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=1, initializer_range=0.1, dtype="float32",
    )  # fmt: skip
    torch.manual_seed(1)
    LlamaForCausalLM(config).save_pretrained(folder / "one_kv_head")
    tiny_moe(folder / "mixtral")
    for ranks in (1, 2, 4):
        run_ranks(SCRIPT, ranks, str(folder))
    return folder


@pytest.fixture(scope="module")
def results(folder: Path) -> dict[str, dict[str, Tensor]]:
    return {
        name: load_file(folder / f"{name}.safetensors") for name in ("1-0", "2-0", "2-1", "4-0", "4-1", "4-2", "4-3")
    }


def _off(given: Tensor, wanted: Tensor) -> float:
    return float((given - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("case", [name for name, _, _ in CASES])
def test_loss_and_gradient_equal_those_of_one_rank(results: dict[str, dict[str, Tensor]], case: str) -> None:
    wanted = results["1-0"]
    assert wanted[f"{case}/gradient"].norm() > 1e-2
    for rank in ("2-0", "2-1", *(["4-0", "4-3"] if case in IN_GROUPS else [])):
        torch.testing.assert_close(results[rank][f"{case}/loss"], wanted[f"{case}/loss"], rtol=1e-5, atol=1e-6)
        assert _off(results[rank][f"{case}/gradient"], wanted[f"{case}/gradient"]) < 1e-4


@pytest.mark.parametrize("case", [name for name, _, _ in CASES])
def test_each_rank_gets_the_outputs_of_its_own_sequences(results: dict[str, dict[str, Tensor]], case: str) -> None:
    for ranks in (2, *([4] if case in IN_GROUPS else [])):
        together = torch.cat([results[f"{ranks}-{rank}"][f"{case}/outputs"] for rank in range(ranks)])
        torch.testing.assert_close(together, results["1-0"][f"{case}/outputs"], rtol=0, atol=1e-4)


@pytest.mark.parametrize("case", ["shared_out", "listed"])
def test_experts_under_zero3_with_empty_micro_batches(results: dict[str, dict[str, Tensor]], case: str) -> None:
    wanted = results["1-0"]
    outputs = torch.cat([results[rank][f"{case}/outputs"] for rank in ("2-0", "2-1")])
    torch.testing.assert_close(outputs, wanted[f"{case}/outputs"], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(results["2-1"][f"{case}/loss"], wanted[f"{case}/loss"], rtol=1e-5, atol=1e-6)
    assert _off(results["2-1"][f"{case}/gradient"], wanted[f"{case}/gradient"]) < 1e-5


@pytest.mark.parametrize("name", ["model.safetensors", "ema/model.safetensors", "adapter/adapter_model.safetensors",
                                  "ema/adapter/adapter_model.safetensors"])  # fmt: skip
def test_adapters_and_their_average_do_not_depend_on_the_ranks(folder: Path, name: str) -> None:
    wanted = load_file(folder / "saved-1" / name)
    for other in ("saved-2", "again-1", "again-2"):
        given = load_file(folder / other / name)
        assert given.keys() == wanted.keys()
        for key, value in wanted.items():
            torch.testing.assert_close(given[key], value, rtol=0, atol=1e-4)
    plain = load_file(folder / "saved-1" / name.removeprefix("ema/"))
    assert name.startswith("ema/") != all(torch.equal(plain[key], value) for key, value in wanted.items())


def test_heads_are_repeated_no_more_than_they_must() -> None:
    assert spread_heads(8, 32, 4) == 1
    assert spread_heads(2, 32, 4) == 2
    assert spread_heads(1, 4, 2) == 2
    assert spread_heads(6, 12, 4) == 2
    with pytest.raises(ConfigError, match="sequence_parallel = 3 does not divide the 4 attention heads"):
        spread_heads(2, 4, 3)


def test_groups_divide_the_ranks() -> None:
    assert LearnerConfig(ranks=4, sequence_parallel=2).sequence_parallel == 2
    with pytest.raises(ValidationError, match="does not divide ranks = 3"):
        LearnerConfig(ranks=3, sequence_parallel=2)
