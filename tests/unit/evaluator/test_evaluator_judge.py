"""The real client against an API that misbehaves on order: each misbehaviour ends as it should."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import pytest

from rlctl.core.errors import ConfigError
from rlctl.evaluator.config import JudgeConfig
from rlctl.evaluator.journal import Reply
from rlctl.evaluator.judge import CallFailed, Judge, Stopped, resolve
from rlctl.evaluator.prices import PRICES, Usage, usage_of
from rlctl.evaluator.standin import StandIn

MESSAGES = [{"role": "system", "content": "json"}, {"role": "user", "content": "hello"}]
KEY = "sk-very-secret-key"


def _ask(
    faults: Sequence[str], *, timeout_s: float = 5.0, max_tries: int = 4, token: str = "", calls: int = 1
) -> tuple[list[Reply], int, StandIn]:
    """Replies, retries and the server, after `calls` calls one after another."""

    async def run() -> tuple[list[Reply], int, StandIn]:
        async with StandIn(faults, token=token) as server:
            server.keep_requests = True
            spec = resolve(
                JudgeConfig(preset="local", model="m", base_url=server.base_url, api_key_env="KEY"), {"KEY": KEY}
            )
            judge = Judge(spec, timeout_s=timeout_s, max_tries=max_tries, max_wait_s=0.2)
            try:
                return [await judge.ask(MESSAGES, 100) for _ in range(calls)], judge.retries, server
            finally:
                await judge.close()

    return asyncio.run(run())


@pytest.mark.parametrize(
    "fault", ["429", "429-retry-after", "500", "503", "reset", "reset-midway", "error-200", "not-json", "no-choices"]
)
def test_a_passing_fault_is_tried_again(fault: str) -> None:
    replies, retries, server = _ask([fault, fault])
    assert '"distinguishes"' in replies[0].content
    assert retries == 2
    assert sum(server.calls.values()) == 3


@pytest.mark.parametrize("fault", ["ok", "blank-lines", "drip"])
def test_slow_and_padded_answers_are_read(fault: str) -> None:
    replies, retries, _ = _ask([fault])
    assert '"distinguishes"' in replies[0].content
    assert (replies[0].model, replies[0].finish_reason, retries) == ("stand-in-1", "stop", 0)
    assert replies[0].usage["prompt_cache_miss_tokens"] > 0


def test_blank_lines_for_ever_end_at_the_total_deadline() -> None:
    begin = time.monotonic()
    with pytest.raises(CallFailed, match=r"no whole reply within 0\.3 s \(2 tries\)"):
        _ask(["blank-lines-forever"] * 2, timeout_s=0.3, max_tries=2)
    assert time.monotonic() - begin < 5


@pytest.mark.parametrize("fault", ["400", "422"])
def test_a_final_answer_is_not_tried_again(fault: str) -> None:
    with pytest.raises(CallFailed, match=f"HTTP {fault}: ordered {fault}"):
        _ask([fault])


@pytest.mark.parametrize("fault, words", [
    ("402", "top up the balance, then give the same command again"),
    ("401", "set KEY to a valid key"),
])  # fmt: skip
def test_what_concerns_the_account_stops_the_run(fault: str, words: str) -> None:
    with pytest.raises(Stopped, match=words) as stopped:
        _ask([fault])
    assert "Every verdict so far is kept" in stopped.value.message


def test_a_key_echoed_by_the_api_is_taken_out() -> None:
    with pytest.raises(Stopped) as stopped:
        _ask([], token="another")
    assert KEY not in stopped.value.message
    assert "[key]" in stopped.value.message


def test_tries_end_with_the_last_fault() -> None:
    with pytest.raises(CallFailed, match=r"HTTP 503: ordered 503 \(3 tries\)"):
        _ask(["503"] * 3, max_tries=3)


def test_an_address_where_nobody_listens_says_so() -> None:
    async def run() -> None:
        spec = resolve(JudgeConfig(preset="local", model="m", base_url="http://127.0.0.1:9/v1"), {})
        judge = Judge(spec, timeout_s=2, max_tries=2, max_wait_s=0.05)
        try:
            await judge.ask(MESSAGES, 10)
        finally:
            await judge.close()

    with pytest.raises(CallFailed, match="connection failed"):
        asyncio.run(run())


def test_what_is_sent() -> None:
    _, _, server = _ask([])
    request = server.requests[0]
    assert request["response_format"] == {"type": "json_object"}
    assert (request["model"], request["temperature"], request["max_tokens"]) == ("m", 0.0, 100)
    assert "thinking" not in request


def test_deepseek_does_not_think_unless_asked_to() -> None:
    body = resolve(JudgeConfig(), {"DEEPSEEK_API_KEY": "k"}).body
    assert body["thinking"] == {"type": "disabled"}
    assert resolve(JudgeConfig(thinking=True), {"DEEPSEEK_API_KEY": "k"}).body["thinking"] == {"type": "enabled"}
    assert resolve(JudgeConfig(json_mode=False), {"DEEPSEEK_API_KEY": "k"}).body.get("response_format") is None


def test_a_missing_key_or_model_is_named() -> None:
    with pytest.raises(ConfigError, match="set DEEPSEEK_API_KEY"):
        resolve(JudgeConfig(), {})
    with pytest.raises(ConfigError, match="--judge-model"):
        resolve(JudgeConfig(preset="local"), {})


def test_usage_and_cost_by_hand() -> None:
    deepseek = usage_of(
        {"prompt_tokens": 1000, "completion_tokens": 100, "prompt_cache_hit_tokens": 600,
         "prompt_cache_miss_tokens": 400, "completion_tokens_details": {"reasoning_tokens": 7}}, "m",
    )  # fmt: skip
    assert (deepseek.input_hit, deepseek.input_miss, deepseek.output, deepseek.reasoning) == (600, 400, 100, 7)
    # 600 × 0.006 + 400 × 0.30 + 100 × 1.20 = 243.6 dollars a million.
    assert deepseek.cost(PRICES["deepseek-flash"]) == pytest.approx(243.6e-6)
    other = usage_of({"prompt_tokens": 10, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}, "m")
    assert (other.input_hit, other.input_miss) == (4, 6)
    assert usage_of({"prompt_tokens": "many"}, "m").input_miss == 0
    assert Usage().cost(None) is None
