"""Rewards from HTTP, reasoning-gym tasks and graders."""

import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from rlctl.core.errors import ConfigError, UnavailableError
from rlctl.reward.grader_scorer import GraderScorer
from rlctl.reward.http_scorer import HttpScorer
from rlctl.reward.sandboxed_scorer import SandboxedScorer
from rlctl.reward.scorer import Fault, Item, Score

pytestmark = pytest.mark.anyio
ITEMS = [Item("p:", "a", "A"), Item("p:", "b", "B")]


@contextmanager
def remote(*answers):
    """A server that gives (status, body) in turn, the last one for ever; yields its address and the bodies it got."""
    got = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            status, body = answers[min(len(got), len(answers)) - 1]
            if status is None:
                time.sleep(body)
                return
            data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/score", got
    finally:
        server.shutdown()
        server.server_close()


async def _post(url, timeout_s=10.0):
    scorer = HttpScorer(url, timeout_s)
    await scorer.load()
    try:
        return await scorer.score(ITEMS)
    finally:
        await scorer.close()


def _reasons(outcomes):
    return [outcome.reason if isinstance(outcome, Fault) else outcome.reward for outcome in outcomes]


async def test_a_remote_reward_gets_query_prompts_and_labels():
    with remote((200, {"rewards": [1, 0.5], "extra_logs": {"len": [1, 2]}})) as (url, got):
        assert await _post(url) == [Score(1.0, {"len": 1.0}), Score(0.5, {"len": 2.0})]
    assert got == [{"query": ["p:a", "p:b"], "prompts": ["p:", "p:"], "labels": ["A", "B"]}]


async def test_a_remote_that_fails_at_first_is_asked_again():
    with remote((503, "busy"), (200, {"rewards": [1, 2]})) as (url, got):
        assert _reasons(await _post(url)) == [1.0, 2.0]
    assert len(got) == 2


@pytest.mark.parametrize(
    "status, reason",
    [(500, "REWARD_REFUSED"), (502, "REWARD_UNREACHABLE"), (503, "REWARD_UNREACHABLE"), (504, "REWARD_UNREACHABLE")],
)
async def test_a_remote_that_keeps_failing_is_asked_three_times(status, reason):
    with remote((status, "oops")) as (url, got):
        outcomes = await _post(url)
    assert _reasons(outcomes) == [reason] * 2
    assert f"answered {status}: oops" in outcomes[0].message
    assert len(got) == 3


async def test_a_remote_that_breaks_off_has_refused():
    with remote((None, 0.0)) as (url, got):
        outcomes = await _post(url)
    assert _reasons(outcomes) == ["REWARD_REFUSED"] * 2
    assert "broke off" in outcomes[0].message
    assert len(got) == 3


async def test_a_refusal_is_not_repeated():
    with remote((404, "no such reward")) as (url, got):
        outcomes = await _post(url)
    assert _reasons(outcomes) == ["REWARD_REFUSED"] * 2
    assert "404: no such reward" in outcomes[0].message
    assert len(got) == 1


async def test_a_remote_that_is_gone_is_unreachable():
    with remote((200, {})) as (url, _):
        scorer = HttpScorer(url, 10.0)
        await scorer.load()
    outcomes = await scorer.score(ITEMS)
    await scorer.close()
    assert _reasons(outcomes) == ["REWARD_UNREACHABLE"] * 2
    assert url in outcomes[0].message


async def test_a_reward_where_nobody_listens_does_not_load():
    with remote((200, {})) as (url, _):
        pass
    with pytest.raises(UnavailableError, match=r"cannot reach http:.*start the remote reward, or correct"):
        await _post(url)


async def test_a_slow_remote_times_out():
    with remote((None, 1.5)) as (url, _):
        begin = time.monotonic()
        assert _reasons(await _post(url, timeout_s=0.3)) == ["REWARD_TIMEOUT"] * 2
        assert time.monotonic() - begin < 1.0


@pytest.mark.parametrize("body", ["no json", [1], {"reward": [1, 2]}, {"rewards": ["x", "y"]}, '{"rewards": [1, 2'])
async def test_a_body_that_makes_no_sense_is_told(body):
    with remote((200, body)) as (url, _):
        assert _reasons(await _post(url)) == ["REWARD_BAD_RESULT"] * 2


async def test_a_number_that_is_none_costs_its_item():
    with remote((200, '{"rewards": [NaN, 1]}')) as (url, _):
        assert _reasons(await _post(url)) == ["REWARD_NOT_FINITE", 1.0]


@pytest.fixture(scope="module")
async def tasks(anyio_backend):
    scorer = SandboxedScorer("task", ["task", ""], memory_mb=4096, timeout_s=20)
    await scorer.load()
    yield scorer
    await scorer.close()


def _entry(name, **parameters):
    import reasoning_gym

    entry = reasoning_gym.create_dataset(name, seed=1, size=1, **parameters)[0]
    return json.loads(json.dumps({"task": name, "entry": entry}))


async def test_a_task_scores_with_its_own_verifier(tasks):
    metadata = _entry("chain_sum", min_terms=2, max_terms=2)
    answer = metadata["entry"]["answer"]
    responses = [answer, f" {answer}\n", f"I add.\n<answer> {answer} </answer>", "no idea", ""]
    outcomes = await tasks.score([Item("q", response, metadata=metadata) for response in responses])
    assert _reasons(outcomes) == [1.0, 1.0, 1.0, 0.0, 0.0]


async def test_a_verifier_that_knows_more_than_one_answer_is_asked(tasks):
    metadata = _entry("countdown")
    numbers, target = metadata["entry"]["metadata"]["numbers"], metadata["entry"]["metadata"]["target"]
    expression = metadata["entry"]["metadata"]["expression"]
    swapped = f"({expression}) * 1" if 1 in numbers else f"({expression})"
    outcomes = await tasks.score([Item("q", text, metadata=metadata) for text in (swapped, str(target))])
    assert outcomes[0].reward == 1.0
    assert outcomes[1].reward < 1.0


async def test_items_without_an_entry_are_told_apart(tasks):
    good = _entry("chain_sum")
    wrong = [{}, {"task": "no_such_task", "entry": good["entry"]}, {"task": "chain_sum", "entry": 3}]
    items = [Item("q", good["entry"]["answer"], metadata=metadata) for metadata in [*wrong, good]]
    assert _reasons(await tasks.score(items)) == ["REWARD_BAD_METADATA"] * 3 + [1.0]


async def test_a_verifier_that_raises_costs_its_item(tasks):
    good = _entry("chain_sum")
    broken = {"task": "chain_sum", "entry": {"question": "?"}}
    items = [Item("q", "1", metadata=broken), Item("q", good["entry"]["answer"], metadata=good)]
    outcomes = await tasks.score(items)
    assert _reasons(outcomes) == ["REWARD_RAISED", 1.0]
    assert "chain_sum" in outcomes[0].message


async def test_an_answer_that_a_verifier_evaluates_cannot_harm_the_service(tasks):
    metadata = _entry("string_insertion")
    attack = "__import__('os')._exit(5) or []"
    outcomes = await tasks.score([Item("q", text, metadata=metadata) for text in (attack, metadata["entry"]["answer"])])
    assert isinstance(outcomes[0], Fault) or outcomes[0].reward < 1.0
    assert outcomes[1] == Score(1.0)


async def test_an_unknown_task_stops_the_start():
    scorer = SandboxedScorer("task", ["task", "chain_summ"], memory_mb=4096, timeout_s=5)
    with pytest.raises(ConfigError, match="no task 'chain_summ'"):
        await scorer.load()
    await scorer.close()


async def test_the_grader_compares_the_final_answer_with_the_label():
    items = [
        Item("q", "So the answer is 72.", "72"),
        Item("q", "So the answer is 71.", "72"),
        Item("q", r"\boxed{1/2}", "#### 0.5"),
        Item("q", "72"),
    ]
    assert _reasons(await GraderScorer().score(items)) == [1.0, 0.0, 1.0, "REWARD_NO_LABEL"]
