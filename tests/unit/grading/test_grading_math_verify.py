"""Against the test pairs of math-verify's own source distribution; it is fetched, never bundled."""

from __future__ import annotations

import ast
import subprocess
import sys
import tarfile
import threading

import pytest

from rlctl.grading.grade import answer_value, grade
from rlctl.grading.symbolic import second_opinion

pytestmark = pytest.mark.optional

VERSION = "0.8.0"
# What its authors count wrong by rules of form, or right by a decimal comma or by rounding: our rules say otherwise.
OTHER_RULES = {
    ("$9$", "Answer $ \n 9 \n $"), ("$9$", "Answer \\( \n 9 \n \\)"), ("1000.99", "1000,99"), ("1,22", "1.22"),
    ("2.74", "Soucis : 2,74 $ a.."), ("0,111", "0.111"), ("$\\frac{1}{12}$", "$0.0833333333333333$"),
    ("$10$", "Answer \\( (9+1) \\)"), ("$28\\%$", "$\\boxed{28}$ pct"), ("$x\\in[0]$", "$0$"),
}  # fmt: skip


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str, bool]]:
    folder = tmp_path_factory.mktemp("math-verify")
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "--no-binary",
        "math-verify",
        f"math-verify=={VERSION}",
    ]
    if subprocess.run(command, cwd=folder, capture_output=True, timeout=280, check=False).returncode:
        pytest.skip("math-verify's source distribution cannot be fetched")
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        archive.extractall(folder, filter="data")
    found = []
    for file in sorted(folder.glob("*/tests/*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Tuple) and len(node.elts) >= 3:
                try:
                    gold, output, equal = (ast.literal_eval(part) for part in node.elts[:3])
                except ValueError:
                    continue
                if isinstance(gold, str) and isinstance(output, str) and equal in (0, 1):
                    found.append((gold, output, bool(equal)))
    return found


def test_no_pair_that_differs_is_called_equal(pairs: list[tuple[str, str, bool]]) -> None:
    assert len(pairs) > 200
    wrong = [
        (gold, output) for gold, output, equal in pairs
        if not equal and (gold, output) not in OTHER_RULES and grade(output, gold).equal
    ]  # fmt: skip
    assert wrong == []


def test_numbers_are_recognised(pairs: list[tuple[str, str, bool]]) -> None:
    """Where the gold answer is one plain number and the answer is not hidden in a broken or prose gold."""
    plain = [
        (gold, output) for gold, output, equal in pairs
        if equal and len(gold) < 40 and answer_value(gold) is not None and (gold, output) not in OTHER_RULES
    ]  # fmt: skip
    missed = [pair for pair in plain if not grade(pair[1], pair[0]).equal]
    assert len(plain) > 60
    assert len(missed) <= 0.08 * len(plain), missed


def test_the_second_opinion_knows_what_rules_do_not() -> None:
    pytest.importorskip("math_verify")
    assert second_opinion("The answer is $\\frac{\\sqrt{8}}{2}$", "\\sqrt{2}") is True
    assert grade("The answer is $\\frac{\\sqrt{8}}{2}$", "\\sqrt{2}").equal is False
    assert second_opinion("The answer is $3$", "$4$") is False
    told: list[bool | None] = [True]
    thread = threading.Thread(target=lambda: told.append(second_opinion("$3$", "$3$")))
    thread.start()
    thread.join()
    assert told[-1] is None
