"""Rewards from a user's Python file: whatever it does costs its own items alone."""

import logging
import os
import textwrap
import time
from pathlib import Path

import anyio
import pytest

from rlctl.core.errors import ConfigError
from rlctl.reward.sandboxed_scorer import SandboxedScorer
from rlctl.reward.scorer import Fault, Item, Score

pytestmark = pytest.mark.anyio


@pytest.fixture
async def scorer(tmp_path):
    """Makes a loaded scorer from the text of a Python file."""
    made = []

    async def make(code, *, timeout_s=10.0, memory_mb=4096):
        path = tmp_path / "reward.py"
        path.write_text(textwrap.dedent(code))
        one = SandboxedScorer("function", ["function", str(path)], memory_mb=memory_mb, timeout_s=timeout_s)
        made.append(one)
        await one.load()
        return one

    yield make
    for one in made:
        await one.close()


def _items(*responses):
    return [Item("p:", response, label=response.upper(), metadata={"n": n}) for n, response in enumerate(responses)]


def _reasons(outcomes):
    return [outcome.reason if isinstance(outcome, Fault) else outcome.reward for outcome in outcomes]


async def test_it_gets_prompt_and_response_as_query_the_prompts_and_the_labels(scorer):
    one = await scorer("""
        def reward_func(queries, prompts, labels):
            assert queries == ["p:a", "p:b"] and prompts == ["p:", "p:"] and labels == ["A", "B"]
            return [1, 0.5]
    """)
    assert await one.score(_items("a", "b")) == [Score(1.0), Score(0.5)]


async def test_metadata_and_responses_come_where_the_signature_asks(scorer):
    one = await scorer("""
        def reward_func(queries, prompts, labels, metadata, **others):
            assert others == {"responses": ["a", "b"]}
            return [row["n"] for row in metadata]
    """)
    assert await one.score(_items("a", "b")) == [Score(0.0), Score(1.0)]


@pytest.mark.parametrize("returned", ["torch.tensor([1.0, 2.0])", "torch.tensor([[1.0], [2.0]]).bfloat16()"])
async def test_a_tensor_is_read(scorer, returned):
    one = await scorer(f"""
        import torch
        def reward_func(queries, prompts, labels):
            return {returned}
    """)
    assert await one.score(_items("a", "b")) == [Score(1.0), Score(2.0)]


async def test_a_dict_gives_scores_and_extra_logs(scorer):
    one = await scorer("""
        def reward_func(queries, prompts, labels):
            logs = {"length": [3, float("nan")], "all": 7, "some": [None, 1]}
            return {"rewards": [1, 2], "scores": [0, 1], "extra_logs": logs}
    """)
    assert await one.score(_items("a", "b")) == [
        Score(1.0, {"score": 0.0, "length": 3.0, "all": 7.0}),
        Score(2.0, {"score": 1.0, "all": 7.0, "some": 1.0}),
    ]


async def test_helpers_beside_the_file_are_importable(scorer, tmp_path):
    (tmp_path / "helper_of_reward.py").write_text("VALUE = 4\n")
    one = await scorer("""
        from helper_of_reward import VALUE
        def reward_func(queries, prompts, labels):
            return [VALUE] * len(queries)
    """)
    assert await one.score(_items("a")) == [Score(4.0)]


MISBEHAVIOURS = {
    "raises": ("raise ValueError('no such unit')", "REWARD_RAISED"),
    "exits": ("raise SystemExit(3)", "REWARD_RAISED"),
    "ends the process": ("os._exit(3)", "REWARD_CRASHED"),
    "is killed": ("os.kill(os.getpid(), 9)", "REWARD_CRASHED"),
    "hangs": ("time.sleep(60)", "REWARD_TIMEOUT"),
    "spins": ("while True: pass", "REWARD_TIMEOUT"),
    "prints without end": ("while True: print('x' * 100_000)", "REWARD_TIMEOUT"),
    "takes all memory": ("bytearray(1 << 40)", "REWARD_RAISED"),
    "is not a number": ("return float('nan')", "REWARD_NOT_FINITE"),
    "is infinite": ("return float('inf')", "REWARD_NOT_FINITE"),
    "is missing": ("return None", "REWARD_NOT_FINITE"),
}


@pytest.mark.parametrize("what", MISBEHAVIOURS)
async def test_an_item_that_misbehaves_costs_itself_alone(scorer, what):
    statement, reason = MISBEHAVIOURS[what]
    one = await scorer(
        f"""
        import os, time
        def one(query):
            if query == "p:bad":
                {statement}
            return 1.0
        def reward_func(queries, prompts, labels):
            return [one(query) for query in queries]
        """,
        timeout_s=1.5,
    )
    outcomes = await one.score(_items("good", "bad", "fine"))
    assert _reasons(outcomes) == [1.0, reason, 1.0]
    assert _reasons(await one.score(_items("next"))) == [1.0]


async def test_slow_items_are_told_apart_from_the_share_of_time_that_they_had(scorer):
    one = await scorer(
        """
        import time
        def reward_func(queries, prompts, labels):
            time.sleep(0.4 * len(queries))
            return [1.0] * len(queries)
        """,
        timeout_s=1.0,
    )
    outcomes = await one.score(_items("a", "b", "c", "d"))
    assert _reasons(outcomes) == ["REWARD_TIMEOUT"] * 4
    assert "0.25 s, its share of timeout_s (1 s for 4 items): unless it hangs, raise timeout_s" in outcomes[0].message


async def test_a_printed_gigabyte_neither_stops_the_answer_nor_reaches_the_log(scorer, caplog):
    caplog.set_level(logging.INFO, "rlctl.reward")
    one = await scorer(
        """
        import os
        def reward_func(queries, prompts, labels):
            print("counting")
            for _ in range(1024):
                os.write(1, b"x" * (1 << 20))
            return [1.0]
        """,
        timeout_s=60,
    )
    assert await one.score(_items("a")) == [Score(1.0)]
    printed = "".join(record.getMessage() for record in caplog.records)
    assert "counting" in printed
    assert len(printed) < 40_000


@pytest.mark.parametrize(
    "returned, words",
    [
        ("[1.0]", "1 numbers for 2 responses"),
        ("1.0", "1 numbers for 2 responses"),
        ("'12'", "must be a list or a tensor, not a str"),
        ("['1', '2']", "must hold numbers, not a str"),
        ("{'reward': [1, 2]}", "must have 'rewards'"),
        ("{'rewards': [1, 2], 'extra_logs': {'a': [1]}}", "extra_logs['a'] has 1 numbers"),
    ],
)
async def test_anything_but_one_number_an_item_is_refused(scorer, returned, words):
    one = await scorer(f"""
        def reward_func(queries, prompts, labels):
            return {returned}
    """)
    outcomes = await one.score(_items("a", "b"))
    assert _reasons(outcomes) == ["REWARD_BAD_RESULT"] * 2
    assert words in outcomes[0].message


async def test_the_fault_says_what_was_raised_and_where(scorer):
    one = await scorer("""
        def reward_func(queries, prompts, labels):
            raise KeyError("unit")
    """)
    (outcome,) = await one.score(_items("a"))
    assert outcome.message == "KeyError: 'unit' (reward.py:3)"


async def test_a_crash_tells_its_last_words(scorer):
    one = await scorer("""
        import os, sys
        def reward_func(queries, prompts, labels):
            print("disk on fire", file=sys.stderr, flush=True)
            os._exit(7)
    """)
    (outcome,) = await one.score(_items("a"))
    assert outcome.message == "its process ended (exit code 7): disk on fire"


async def test_secrets_of_the_service_are_out_of_reach(scorer, monkeypatch):
    monkeypatch.setenv("RLCTL_TOKEN", "secret")
    one = await scorer("""
        import os
        def reward_func(queries, prompts, labels):
            here = os.getcwd()
            safe = not any("RLCTL" in name for name in os.environ) and os.environ["HOME"] == here
            return [float(safe and os.listdir(here) == [])]
    """)
    assert await one.score(_items("a")) == [Score(1.0)]


async def test_input_and_prints_stay_away_from_the_protocol(scorer):
    one = await scorer("""
        def reward_func(queries, prompts, labels):
            print('{"id": 1, "results": []}')
            try:
                input()
            except EOFError:
                return [2.0]
    """)
    assert await one.score(_items("a")) == [Score(2.0)]


async def test_a_killed_function_leaves_no_process_behind(scorer, tmp_path):
    one = await scorer(
        f"""
        import subprocess, time
        def reward_func(queries, prompts, labels):
            child = subprocess.Popen(["sleep", "60"])
            open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
            time.sleep(60)
        """,
        timeout_s=1.0,
    )
    assert _reasons(await one.score(_items("a"))) == ["REWARD_TIMEOUT"]
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 5
    while _alive(pid) and time.monotonic() < deadline:
        await anyio.sleep(0.05)
    assert not _alive(pid)


def _alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


@pytest.mark.parametrize(
    "code, words",
    [
        ("import no_such_module_anywhere", "No module named 'no_such_module_anywhere'"),
        ("def reward(queries): pass", "has no function reward_func"),
        ("import os; os._exit(1)", "its process ended (exit code 1)"),
    ],
)
async def test_a_file_that_cannot_be_loaded_stops_the_start(scorer, code, words):
    with pytest.raises(ConfigError) as caught:
        await scorer(code)
    assert words in caught.value.message


async def test_a_caller_who_gives_up_does_not_shift_the_answers(scorer):
    one = await scorer("""
        import time
        def reward_func(queries, prompts, labels):
            if labels == ["SLOW"]:
                time.sleep(1)
            return [float(len(labels[0]))]
    """)
    with anyio.move_on_after(0.3):
        await one.score(_items("slow"))
    assert await one.score(_items("quick")) == [Score(5.0)]
