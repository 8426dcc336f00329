"""Each kind of answer with what it equals and what it must not equal."""

# ruff: noqa: E501
from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlctl.grading.grade import grade, grade_pair

GIVEN = [
    json.loads(line) for line in (Path(__file__).parent / "given_cases.jsonl").read_text("utf-8").split("\n") if line
]

# kind -> (pairs that are equal, pairs that are not)
TABLE: dict[str, tuple[list[tuple[str, str]], list[tuple[str, str]]]] = {
    "glued to Chinese": (
        [("答案：72元。", "72"), ("所以小明还剩下15个苹果。", "15"), ("答:一共需要48分钟", "48"), ("因此得数为9只", "9")],
        [("答案：72元。", "7"), ("所以小明还剩下15个苹果。", "5")],
    ),
    "thousands": (
        [("答案是1,000元", "1000"), ("total: 12,345,678", "12345678"), ("答案是1,000.50元", "1000.5"), ("１，０００元", "1000")],
        [("答案是1,000元", "1"), ("答案是1,00元", "100"), ("答案是1,0000元", "10000"), ("1，000和2", "1000")],
    ),
    "thousands by spaces": (
        [("answer: 1 000 000", "1000000"), ("答案：12 500元", "12500"), ("total = 9 999", "9999")],
        [("answer: 1 00 000", "100000"), ("answer: 10 20", "1020"), ("answer: 0 000", "0000 1")],
    ),
    "percent": (
        [("答案是50%", "0.5"), ("25 percent", "1/4"), ("答案：12.5％", "1/8"), ("\\boxed{30\\%}", "30%"), ("$28$ %", "28%")],
        [("答案是50%", "50"), ("答案是50", "50%"), ("答案：5%", "0.5")],
    ),
    "fraction": (
        [("答案是1/2", "0.5"), ("答案：10/4", "5/2"), ("= -3/4", "-0.75"), ("答案是 6 / 8", "3/4")],
        [("答案是1/2", "2"), ("答案是1/2", "1"), ("答案是1/3", "0.333"), ("答案是 1/0", "0")],
    ),
    "mixed fraction": (
        [("答案：2又1/2", "2.5"), ("The answer is 2 1/2", "5/2"), ("$3\\frac{1}{4}$", "3.25"), ("½", "0.5"), ("2½", "2.5")],
        [("答案：2又1/2", "2"), ("The answer is 2 1/2", "21/2"), ("2½", "10.5")],
    ),
    "full-width": (
        [("一共有７２个", "72"), ("答案：３／４", "0.75"), ("－５", "-5"), ("５０％", "1/2"), ("３．５", "3.5")],
        [("一共有７２个", "7"), ("－５", "5")],
    ),
    "negative": (
        [("答案为−5", "-5"), ("x=-7.", "-7"), ("#### -3", "-3"), ("答案：负3", "-3"), ("零下5度", "-5"), ("-$12", "-12")],
        [("答案为−5", "5"), ("10-3", "-3"), ("x-7", "-7"), ("covid-19", "-19")],
    ),
    "Chinese magnitude": (
        [("答案：3万", "30000"), ("3.5万元", "35000"), ("2亿", "200000000"), ("3百万", "3000000"), ("1万2千", "12000"), ("3万5", "35000")],
        [("答案：3万", "3"), ("答案：3万", "3000"), ("1万2千", "1.2")],
    ),
    "English magnitude": (
        [("5 million", "5000000"), ("2.5 thousand dollars", "2500"), ("3 hundred", "300")],
        [("5 million", "5"), ("2.5 thousand", "2.5")],
    ),
    "Chinese numeral": (
        [("答案：七十二", "72"), ("答案是十", "10"), ("答案是一百零五", "105"), ("答案：二〇二四", "2024"), ("等于三点一四", "3.14")],
        [("答案：七十二", "70"), ("答案：七十二", "2"), ("他们一样多", "1")],
    ),
    "two as 两": (
        [("答案是两百", "200"), ("两千五", "2500"), ("共两个", "2"), ("两万零三", "20003")],
        [("答案是两百", "2"), ("答案是两百", "100")],
    ),
    "spoken numeral": (
        [("答案是三万五", "35000"), ("一百二", "120"), ("两千三", "2300"), ("答案：一万二", "12000")],
        [("答案是三万五", "30005"), ("一百二", "102")],
    ),
    "financial numeral": (
        [("壹佰贰拾元", "120"), ("叁仟元整", "3000"), ("伍万", "50000"), ("陆拾", "60")],
        [("壹佰贰拾元", "100"), ("叁仟", "3")],
    ),
    "negative numeral": (
        [("答案：负三", "-3"), ("答案是负二十", "-20"), ("零下十五度", "-15")],
        [("答案：负三", "3"), ("答案是负二十", "20")],
    ),
    "Chinese fraction": (
        [("共三分之一", "1/3"), ("四分之三", "0.75"), ("3分之2", "2/3"), ("一又二分之一", "1.5"), ("还剩一半", "0.5")],
        [("共三分之一", "1"), ("共三分之一", "3"), ("四分之三", "4/3")],
    ),
    "Chinese percent": (
        [("百分之五十", "0.5"), ("百分之50", "50%"), ("百分之十二点五", "12.5%"), ("千分之三", "0.003"), ("百分之百", "1")],
        [("百分之五十", "50"), ("百分之五", "0.5")],
    ),
    "numerals inside words": (
        [("一共有5个苹果", "5"), ("一个三角形的面积是12", "12"), ("十分简单，是8", "8"), ("第一步得9", "9")],
        [("他们一起走", "1"), ("三角形", "3"), ("十分感谢", "10"), ("这是第一", "1")],
    ),
    "box": (
        [("\\boxed{8,000}", "8000"), ("\\boxed{72\\text{ apples}}", "72"), ("\\boxed{x=5}", "5"), ("\\fbox{7}", "7"),
         ("first \\boxed{1}, then \\boxed{2}", "2"), ("\\boxed{\\boxed{3}}", "3"), ("\\boxed{32,\\!349}", "32349")],
        [("\\boxed{255}. Final answer: 10", "255"), ("\\boxed{12} so 15", "15"), ("first \\boxed{1}, then \\boxed{2}", "1"), ("\\boxed{3, 4}", "4"), ("\\boxed{}", "0")],
    ),
    "box left open": (
        [("\\boxed{12} later \\boxed{15", "12"), ("We use a \\boxed form: 5", "5"), ("\\boxed 6", "6"), ("the end: 4 \\boxed", "4")],
        [("\\boxed{12} later \\boxed{15", "15"), ("\\boxed{12} later \\boxed{15", "1215")],
    ),
    "LaTeX thousands": (
        [("The answer is $9{,}500$.", "9500"), ("$1{,}234{,}567$", "1234567"), ("\\(12{,}000\\)", "12000")],
        [("$9{,}500$", "9"), ("$9{,}500$", "500")],
    ),
    "money": (
        [("It costs $29.00", "29"), ("£1,250.50", "1250.5"), ("¥100", "100"), ("€5", "5"), ("RMB 80", "80"), ("\\$12", "12")],
        [("It costs $29.00", "2900"), ("£1,250.50", "250.5")],
    ),
    "LaTeX fraction": (
        [("\\frac{3}{4}", "0.75"), ("\\boxed{\\dfrac{3}{4}}", "3/4"), ("\\frac12", "0.5"), ("-\\frac{1}{2}", "-1/2"), ("\\tfrac{10}{4}", "5/2")],
        [("\\frac{3}{4}", "4"), ("\\frac{3}{4}", "3"), ("\\frac{1+\\sqrt{5}}{2}", "2")],
    ),
    "emphasis": (
        [("the result is **73**", "73"), ("答案：**72**元", "72"), ("__42__", "42"), ("`9`", "9"), ("<b>7</b>", "7")],
        [("the result is **73**", "7"), ("**1** is wrong, it is **2**", "1")],
    ),
    "brackets and stop": (
        [("(42).", "42"), ("答案：72 元（每人 36 元）", "72"), ("36×2=72(元)", "72"), ("[8]", "8")],
        [("答案：72 元（每人 36 元）", "36"), ("2 × (3 + 4)", "2")],
    ),
    "hashes": (
        [("#### 1,234", "1234"), ("so 5\n#### 6", "6"), ("####7", "7"), ("#### $8", "8")],
        [("so 5\n#### 6", "5"), ("#### 1\n#### 2", "1")],
    ),
    "scientific": (
        [("= 1.5e3", "1500"), ("1.5 \\times 10^{3}", "1500"), ("2×10^-2", "0.02"), ("3E+2", "300"), ("10^6", "1000000"), ("5²", "25")],
        [("= 1.5e3", "1.5"), ("5²", "52"), ("1e999999", "1"), ("2×10^3", "2")],
    ),
    "decimals": (
        [("about 3.10", "3.1"), ("答案是0.50", "1/2"), ("The result is .5", "0.5"), ("It is 5.", "5")],
        [("about 3.10", "310"), ("0.333", "1/3"), ("version 1.2.3", "3")],
    ),
    "time and date": (
        [("会议在12:00开始，共3人", "3"), ("2024-01-02: 5", "5"), ("at 9:30 she has 4 left", "4")],
        [("meeting at 12:00", "12"), ("meeting at 12:00", "0"), ("on 2024-01-02", "2")],
    ),
    "ratio": (
        [("答案是3:4", "3:4"), ("\\boxed{7:32}", "7:32"), ("答案：１：２", "1:2")],
        [("答案是3:4", "0.75"), ("答案是3:4", "4"), ("答案是3:4", "3")],
    ),
    "list": (
        [("the answer is 0,1", "0,1"), ("\\boxed{3, 4}", "3,4"), ("[0,1)", "[0,1)")],
        [("the pair is 0,1", "1"), ("the pair is 0,1", "01"), ("约1,22", "122"), ("约1,22", "1.22"), ("3、4", "4"), ("3到5", "5")],
    ),
    "several numbers": (
        [("first 3, then 7, so the total is 10", "10"), ("answer is 36+36=72", "72"), ("The answer is 29 for 3 shirts", "29")],
        [("answer is 5 apples and 3 pears", "5"), ("answer is 5 apples and 3 pears", "3"), ("答案是3+4", "4"), ("答案是1小时30分", "1")],
    ),
    "equation": (
        [("x = 7", "7"), ("设x=3,则2x+1=7", "7"), ("20-10=10", "10"), ("x=1/3≈0.33", "1/3")],
        [("20-10=10", "20"), ("x > 5", "5"), ("x >= 5", "5"), ("x + 1", "1"), ("\\boxed{n-3}", "3"), ("±5", "5"), ("$a+3z=0$", "5")],
    ),
    "symbols": (
        [("\\boxed{3\\sqrt{13}}", "3\\sqrt{13}"), ("\\boxed{2\\pi}", "2π"), ("\\boxed{\\frac{x}{2}}", "\\frac{x}{2}")],
        [("\\boxed{2\\pi}", "2"), ("\\boxed{3\\sqrt{2}}", "3"), ("\\boxed{3\\sqrt{2}}", "2"), ("\\boxed{4x}", "4")],
    ),
    "units": (
        [("100 cm", "100"), ("25 cm^2", "25"), ("1,000.99m²", "1000.99"), ("90^\\circ", "90"), ("5kg", "5"), ("36℃", "36")],
        [("25 cm^2", "2"), ("12 m³", "3")],
    ),
    "thought": (
        [("<think>maybe 40</think>the answer is 42", "42"), ("maybe 40</think>42", "42"), ("<thinking>1</thinking>\n2", "2")],
        [("<think>maybe 40</think>the answer is 42", "40"), ("<think>it is 42", "42"), ("<think>it is \\boxed{42}</think>", "42")],
    ),
    "words": (
        [("The answer is Monday.", "Monday"), ("\\boxed{B}", "B"), ("\\text{odd}", "odd"), ("答案：星期三", "星期三"), ("(B)", "B")],
        [("The answer is Monday.", "Tuesday"), ("\\boxed{B}", "A"), ("星期三", "3")],
    ),
    "nothing": (
        [("5", "5"), (" 5 ", "5"), ("\n5\n", "5")],
        [("", "5"), ("我不知道", "5"), ("答案：", "5"), ("   ", "0"), ("。。。", "0")],
    ),
}  # fmt: skip

EQUAL = [(kind, output, gold) for kind, (equal, _) in TABLE.items() for output, gold in equal]
DIFFERENT = [(kind, output, gold) for kind, (_, different) in TABLE.items() for output, gold in different]


def test_every_kind_has_three_neighbours_and_two_negatives() -> None:
    assert [kind for kind, (equal, different) in TABLE.items() if len(equal) < 3 or len(different) < 2] == []


@pytest.mark.parametrize("kind, output, gold", EQUAL)
def test_answer_equals_gold(kind: str, output: str, gold: str) -> None:
    found = grade(output, gold)
    assert found.equal, f"{kind}: {found}"
    assert found.reason == ""


@pytest.mark.parametrize("kind, output, gold", DIFFERENT)
def test_answer_differs_from_gold(kind: str, output: str, gold: str) -> None:
    found = grade(output, gold)
    assert not found.equal, f"{kind}: {found}"
    assert found.reason


@pytest.mark.parametrize("case", GIVEN, ids=lambda case: case["output"][:24])
def test_given_cases(case: dict[str, object]) -> None:
    if case["kind"] == "single":
        assert grade(str(case["output"]), str(case["gold"])).equal is case["equal"]
    else:
        pair = grade_pair(str(case["output"]), str(case["gold_a"]), str(case["gold_b"]))
        assert (pair.a.equal, pair.b.equal) == (case["a_right"], case["b_right"])
