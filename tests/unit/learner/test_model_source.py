"""Models are found in folders, on the hub and in the cache, and a missing one is told by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlctl.core.errors import ConfigError, NotFoundError
from rlctl.models.load import load_causal_lm
from rlctl.models.source import SMOLLM2, resolve


def test_a_folder_is_itself(tiny: Path) -> None:
    assert resolve(str(tiny)) == tiny.resolve()


@pytest.mark.parametrize("name", ["./nowhere", "/no/such/model", "plainname"])
def test_a_missing_folder_is_not_sought_on_the_hub(name: str) -> None:
    with pytest.raises(NotFoundError, match=name):
        resolve(name)


def test_no_name_is_a_wrong_setting() -> None:
    with pytest.raises(ConfigError, match="no model is named"):
        resolve("")


def test_a_model_the_hub_does_not_give_is_named_with_the_mend() -> None:
    with pytest.raises(NotFoundError, match=r"rlctl-nobody/none-such.*give a folder"):
        resolve("rlctl-nobody/none-such")


def test_a_converted_model_is_taken_from_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RLCTL_CACHE", str(tmp_path))
    converted = tmp_path / "models" / SMOLLM2.replace("/", "--")
    converted.mkdir(parents=True)
    (converted / "config.json").write_text("{}")
    assert resolve(SMOLLM2) == converted


def test_a_folder_without_a_model_is_told(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"config\.json is missing"):
        load_causal_lm(tmp_path, "float32")
