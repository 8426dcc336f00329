"""Two problems in one output: whose answer is whose."""

from __future__ import annotations

import pytest

from rlctl.grading.grade import grade_pair

BOTH_RIGHT = [
    "问题A：先算……\n答案A：72\n问题B：再算……\n答案B：10",
    "A和B的答案分别是72和10。",
    "两题的答案分别为72、10",
    "A and B: \\boxed{72} and \\boxed{10}",
    "\\boxed{72, 10}",
    "\\boxed{A=72, B=10}",
    "\\boxed{A: 72} \\boxed{B: 10}",
    "1. 72\n2. 10",
    "(1) 72 (2) 10",
    "①72 ②10",
    "题目一的答案为72，题目二的答案为10",
    "**Problem A**: 36 + 36 = **72**\n\n**Problem B**: 20 - 10 = **10**",
    "A train leaves with 36 people. Answer A: 72. A dog has 4 legs. Answer B: 10.",
    "Answer B is 10, answer A is 72",
    "最终答案：\nA: $72$\nB: $10$",
    "A: 5\nB: 6\n检查后更正：\nA: 72\nB: 10",
    "最终答案：问题A = 72 元，问题B = 百分之一千",
    "先想A，36加36。再想B，20减10。回到A，是72。回到B，是10。",
    "### A\n\\boxed{72}\n### B\n\\boxed{10}",
    "Q1: 72\nQ2: 10",
    "问题A：逐步计算得到72。\n问题B：逐步计算得到10。\n最终答案：72；10",
    "A: 36 + 36, final answer 72. B: 20 - 10, final answer 10.",
    "问题A：得到5。\n问题B：得到6。\n最终答案：\\boxed{72} 和 \\boxed{10}",
]
CASES = [(output, True, True) for output in BOTH_RIGHT] + [
    ("答案A：10 答案B：72", False, False),
    ("\\boxed{10} \\boxed{72}", False, False),
    ("A和B的答案分别是10和72。", False, False),
    ("答案：72", False, False),
    ("\\boxed{72}", False, False),
    ("A: 72", True, False),
    ("B: 10", False, True),
    ("", False, False),
    ("<think>A: 72, B: 10", False, False),
    ("A: 72 B: 1 或 10", True, False),
    ("第一题：10；第二题：10", False, True),
    ("最终答案：72；10；5", False, False),
]


@pytest.mark.parametrize("output, a_right, b_right", CASES)
def test_pair(output: str, a_right: bool, b_right: bool) -> None:
    pair = grade_pair(output, "72", "10")
    assert (pair.a.equal, pair.b.equal) == (a_right, b_right), pair
