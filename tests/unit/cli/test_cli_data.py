"""`rlctl data preview`."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from rlctl.cli.data import preview
from rlctl.cli.preview import show
from rlctl.core.errors import ConfigError, NotFoundError
from rlctl.data.config import SupervisedDataConfig
from rlctl.data.supervised import load_supervised
from rlctl.models.arithmetic import build_tokenizer

ARITHMETIC = "rlctl/arithmetic-llama"


@pytest.fixture
def sums(tmp_path):
    rows = [{"prompt": "1 + 2 =", "label": " 3"}, {"prompt": "2 + 2 =", "label": " 4"}, {"prompt": "", "label": " 5"}]
    path = tmp_path / "sums.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def shown(capsys) -> str:
    return " ".join(capsys.readouterr().out.replace("│", " ").split())


def test_a_data_set_by_path(sums, capsys):
    preview(str(sums), ["max_samples=1"], "sft", ARITHMETIC, False, 3, 0)
    said = shown(capsys)
    assert "<s>1 + 2 =⟦ 3</s>⟧" in said
    assert "2 + 2 =" not in said
    assert "sums.jsonl: 3 rows" in said
    assert "empty 1" in said
    assert "beyond max samples 1" in said
    assert "kept 1" in said


def test_the_rows_from_a_number_on(sums, capsys):
    preview(str(sums), [], "supervised", ARITHMETIC, False, 1, 1)
    said = shown(capsys)
    assert "row 1" in said
    assert "<s>2 + 2 =⟦ 4</s>⟧" in said
    assert "1 + 2 =" not in said


def test_a_recipe_has_its_held_out_rows_taken_out(sums, tmp_path, capsys):
    held = tmp_path / "held.jsonl"
    held.write_text('{"prompt": "2 + 2 =", "label": " 4"}\n')
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(f'job = "sft"\nmodel = "{ARITHMETIC}"\n[[data]]\npath = "{sums}"\n[eval_data]\npath = "{held}"\n')
    preview(str(recipe), [], None, None, False, 3, 0)
    said = shown(capsys)
    assert "held out 1" in said
    assert "2 + 2 =" not in said
    preview(str(recipe), [], None, None, True, 3, 0)
    assert "2 + 2 =" in shown(capsys)


def test_a_recipe_without_a_job_is_that_of_ppo(sums, tmp_path, capsys):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(f'model = "{ARITHMETIC}"\n[data]\npath = "{sums}"\n')
    preview(str(recipe), ["data.max_samples=1"], None, None, False, 3, 0)
    assert "prompt, label ' 3': " in shown(capsys)
    with pytest.raises(NotFoundError, match="has no held-out data"):
        preview(str(recipe), [], None, None, True, 3, 0)


def test_what_is_missing_is_asked_for(sums, tmp_path):
    with pytest.raises(ConfigError, match=r"what is in it.*say --as prompts, supervised"):
        preview(str(sums), [], None, ARITHMETIC, False, 3, 0)
    with pytest.raises(ConfigError, match="--as ghost is unknown"):
        preview(str(sums), [], "ghost", ARITHMETIC, False, 3, 0)
    with pytest.raises(ConfigError, match="whose tokens"):
        preview(str(sums), [], "sft", None, False, 3, 0)
    with pytest.raises(ConfigError, match="--eval is for a recipe"):
        preview(str(sums), [], "sft", ARITHMETIC, True, 3, 0)
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(f'[[data]]\npath = "{sums}"\n')
    with pytest.raises(ConfigError, match="does not say which trainer it is for: say --as sft"):
        preview(str(recipe), [], None, ARITHMETIC, False, 3, 0)


def test_colours_take_the_place_of_marks(sums):
    out = io.StringIO()
    config = SupervisedDataConfig(path=str(sums))
    data = load_supervised(config, build_tokenizer())
    console = Console(file=out, force_terminal=True, color_system="truecolor", width=100)
    show(console, config, data.items, data.counts, build_tokenizer())
    assert "⟦" not in out.getvalue()
    assert "colours: " in out.getvalue()
    # A background colour is set on what is learnt only.
    line = next(line for line in out.getvalue().splitlines() if "</s>" in line)
    assert line.index("=") < line.index("48;") < line.index("</s>")
