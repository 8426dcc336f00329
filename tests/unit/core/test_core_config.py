"""Settings from a file with overrides on top: what a fault says, and where it says it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import Field

from rlctl.core.config import StrictConfig, load
from rlctl.core.errors import ConfigError


class Part(StrictConfig):
    rate: float = Field(1.0, gt=0)
    tags: list[str] = []


class Whole(StrictConfig):
    name: str = "run"
    steps: int = 1
    limit: int | None = 7
    part: Part = Part()
    spare: Part | None = None


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "whole.toml"
    file.write_text('steps = 3\nlimit = "none"\n\n[part]\nrate = 2\n')
    return file


def test_an_override_goes_before_the_file_and_the_file_before_the_default(path: Path) -> None:
    loaded = load(Whole, path, ["part.rate=4", 'part.tags=["a"]', "spare.rate=5"])
    assert loaded == Whole(steps=3, limit=None, part=Part(rate=4, tags=["a"]), spare=Part(rate=5))
    assert load(Whole, path, ["limit=8", "limit=none"]).limit is None


@pytest.mark.parametrize(
    "text, told",
    [
        ("steps = 1\nstep = 3\n", "whole.toml:2: unknown setting 'step'. Did you mean 'steps'?"),
        ("\n[part]\nrate = -1\n", "whole.toml:3: part.rate: Input should be greater than 0 (given: -1)"),
        ("part = 3\n", "whole.toml:1: part: must be a table; {} is an empty one (given: 3)"),
        ("[part]\nrates = 1\n", "whole.toml:2: unknown setting 'part.rates'. Did you mean 'part.rate'?"),
        ("steps =\n", "whole.toml: Invalid value"),
    ],
)
def test_a_fault_in_a_file_names_its_line(text: str, told: str, path: Path) -> None:
    path.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(told)):
        load(Whole, path)


@pytest.mark.parametrize(
    "override, told",
    [
        ("step=3", "override step: unknown setting 'step'. Did you mean 'steps'?"),
        ("prat.rate=3", "override prat.rate: unknown setting 'prat'. Did you mean 'part'?"),
        ("part.rate=0", "override part.rate: part.rate: Input should be greater than 0 (given: 0)"),
        ("part={rate=0}", "override part: part.rate: Input should be greater than 0 (given: 0)"),
        ("spare=", "override spare: spare: must be a table, or `none` (given: '')"),
        ("name=nan", "override name: name: must be text; quote it: 'name=\"...\"' (given: nan)"),
        ("steps", "'steps' is no override; write name=value"),
    ],
)
def test_a_fault_in_an_override_names_the_override_and_not_the_file(override: str, told: str, path: Path) -> None:
    with pytest.raises(ConfigError, match="^" + re.escape(told)):
        load(Whole, path, ["limit=2", override, "part.tags=[]"])


def test_a_fault_of_the_file_is_not_blamed_on_an_override_beside_it(path: Path) -> None:
    path.write_text("[part]\nrate = -1\n")
    with pytest.raises(ConfigError, match="^" + re.escape(f"{path}:2: part.rate: ")):
        load(Whole, path, ["part.tags=[]"])


def test_the_value_of_an_override_is_not_repeated(path: Path) -> None:
    with pytest.raises(ConfigError) as failure:
        load(Whole, path, ['part={rate=-1, tags=["sk-secret"]}'])
    assert "override part: part.rate" in failure.value.message
    assert "sk-secret" not in failure.value.message
