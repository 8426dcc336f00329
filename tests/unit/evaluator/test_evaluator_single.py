"""Single mode: accuracy, pass@k, reasoning-gym tasks; and the prompts that are made before generation."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import openpyxl
import pytest

from rlctl.core.errors import ConfigError
from rlctl.evaluator.config import EvaluatorConfig, PairingConfig
from rlctl.evaluator.files import RESULTS, WORKBOOK
from rlctl.evaluator.job import run_job
from rlctl.evaluator.making import prompts
from rlctl.evaluator.tasks import task_items


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def _config(tmp_path: Path, **more: Any) -> EvaluatorConfig:
    return EvaluatorConfig(
        mode="single", outputs=tmp_path / "outputs", gold=str(tmp_path / "gold.jsonl"), output_dir=tmp_path / "report",
        bootstrap=500, **more,
    )  # fmt: skip


def test_accuracy_and_pass_at_k_by_hand(tmp_path: Path) -> None:
    rows = [{"prompt": "p", "output": f"答案：{said}", "answer": "4"} for said in ("4", "5", "4", "6")]
    rows += [{"prompt": "q", "output": "#### 7", "answer": "8"} for _ in range(4)]
    rows += [{"prompt": "r", "output": "x"}]
    _write(tmp_path / "outputs" / "set.jsonl", rows)
    _write(tmp_path / "gold.jsonl", [{"question": "another question", "answer": "1"}])
    summary = asyncio.run(run_job(_config(tmp_path, pass_k=[1, 2, 5])))
    measures = summary["data_sets"]["set"]["measures"]
    assert (measures["accuracy"]["yes"], measures["accuracy"]["n"], measures["accuracy"]["unscored"]) == (2, 8, 1)
    # pass@1 is the mean of 2/4 and 0; pass@2 that of 1 - C(2,2)/C(4,2) = 5/6 and 0.
    assert measures["pass@1"]["value"] == pytest.approx(0.25)
    assert measures["pass@2"]["value"] == pytest.approx(5 / 12)
    assert (measures["pass@5"]["value"], measures["pass@5"]["unscored"]) == (None, 2)
    results = [json.loads(line) for line in (tmp_path / "report" / RESULTS).read_text().split("\n") if line]
    assert [row["right"] for row in results] == [True, False, True, False, False, False, False, False, None]
    assert results[-1]["reason"] == "gold_unmatched"
    assert openpyxl.load_workbook(tmp_path / "report" / WORKBOOK).sheetnames == ["Summary", "set"]


def test_gold_is_found_by_the_question(tmp_path: Path) -> None:
    _write(tmp_path / "gold.jsonl", [{"question_zh": "三加四等于多少？", "answer_only": "7"}])
    _write(tmp_path / "outputs" / "set.jsonl", [{"prompt": "请回答：三加四等于多少？", "output": "答案是七。"}])
    summary = asyncio.run(run_job(_config(tmp_path)))
    assert summary["data_sets"]["set"]["measures"]["accuracy"]["yes"] == 1


def test_a_task_is_scored_by_its_own_verifier(tmp_path: Path) -> None:
    items = task_items("task:basic_arithmetic", 6, 3)
    about = {"task": "task:basic_arithmetic", "size": 6, "seed": 3}
    rows = [
        {
            "prompt": item.questions[0],
            "output": item.answer if index % 2 else "no idea",
            "metadata": {**about, "index": index},
        }
        for index, item in enumerate(items)
    ]
    _write(tmp_path / "outputs" / "set.jsonl", rows)
    summary = asyncio.run(run_job(_config(tmp_path)))
    assert summary["data_sets"]["set"]["measures"]["accuracy"]["yes"] == 3
    with pytest.raises(ConfigError, match="no reasoning-gym task"):
        task_items("task:nonsense", 1, 0)


GOLD = [{"question_zh": f"问题{n}是什么？", "question": f"What is {n}?", "answer_only": str(n)} for n in range(10)]


def test_pairs_are_made_by_the_seed(tmp_path: Path) -> None:
    _write(tmp_path / "gold.jsonl", GOLD)

    def made(**more: Any) -> list[dict[str, Any]]:
        config = _config(tmp_path, generate=PairingConfig(model="m", **more.pop("generate", {})), **more)
        return prompts(config.model_copy(update={"mode": "pair"}))

    rows = made()
    assert len(rows) == 5
    assert sorted(row[key] for row in rows for key in ("answer_a", "answer_b")) == [str(n) for n in range(10)]
    assert all(f"问题{row['answer_a']}是什么" in row["prompt"] for row in rows)
    assert made() == rows
    assert made(seed=1) != rows
    english = made(generate={"language": "en", "samples": 3}, max_samples=2)
    assert len(english) == 6
    assert f"What is {english[0]['answer_a']}?" in english[0]["prompt"]
    assert [row["sample"] for row in english] == [0, 1, 2, 0, 1, 2]


def test_a_template_is_filled_and_checked(tmp_path: Path) -> None:
    _write(tmp_path / "gold.jsonl", GOLD)
    template = tmp_path / "t.txt"
    template.write_text("Q: {question} {braces}")
    config = _config(tmp_path, generate=PairingConfig(model="m", template=template, language="en"))
    assert prompts(config)[0]["prompt"].endswith("? {braces}")
    template.write_text("nothing")
    with pytest.raises(ConfigError, match=r"lacks \{question\}"):
        prompts(config)


def test_task_prompts_carry_what_scores_them(tmp_path: Path) -> None:
    config = EvaluatorConfig(mode="single", gold="task:basic_arithmetic", max_samples=3, seed=5, output_dir=tmp_path,
                             generate=PairingConfig(model="m"))  # fmt: skip
    rows = prompts(config)
    assert [row["metadata"]["index"] for row in rows] == [0, 1, 2]
    assert rows[0]["prompt"] == task_items("task:basic_arithmetic", 3, 5)[0].questions[0]
