"""Outputs for two problems, made by a seed, with their gold answers."""

from __future__ import annotations

import json
import random
from pathlib import Path


def write_pairs(folder: Path, count: int, *, seed: int = 1, name: str = "set", padding: int = 0) -> tuple[Path, Path]:
    """Writes `folder/outputs/<name>.jsonl` and `folder/gold.jsonl`; returns (outputs folder, gold file)."""
    rng = random.Random(seed)
    problems = []
    for index in range(max(40, min(count, 400))):
        a, b = rng.randint(2, 90), rng.randint(2, 90)
        problems.append((f"小明有{a}个苹果，小红又给了他{b}个，编号{index}，一共有多少个？", a + b))
    outputs, gold = folder / "outputs", folder / "gold.jsonl"
    outputs.mkdir(parents=True, exist_ok=True)
    rows = [{"question_zh": question, "answer_only": str(answer), "split": "test"} for question, answer in problems]
    gold.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    with (outputs / f"{name}.jsonl").open("w", encoding="utf-8") as file:
        for index in range(count):
            file.write(json.dumps(_record(rng, problems, index, padding), ensure_ascii=False) + "\n")
    return outputs, gold


def _record(rng: random.Random, problems: list[tuple[str, int]], index: int, padding: int) -> dict[str, str]:
    (question_a, a), (question_b, b) = rng.sample(problems, 2)
    a_said = a if rng.random() < 0.7 else a + 1
    b_said = b if rng.random() < 0.7 else b + 1
    thought = "先看A，想一想。再看B，算一算。回到A，继续A。再看B。" if rng.random() < 0.5 else "先看A。再看B。"
    thought += "让我想想这道题的条件。" * padding
    return {
        "prompt": f"同时解决两个问题。问题A：{question_a} 问题B：{question_b} 第{index}号",
        "output": f"<think>{thought}</think>最终答案：A={a_said}，B={b_said}",
    }
