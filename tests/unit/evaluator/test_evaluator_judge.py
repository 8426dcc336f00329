"""The real client against an API that misbehaves on order: each misbehaviour ends as it should."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from pydantic import ValidationError

from rlctl.core.config import load
from rlctl.core.errors import ConfigError
from rlctl.evaluator.config import EvaluatorConfig, JudgeConfig
from rlctl.evaluator.journal import Reply, Stopped
from rlctl.evaluator.judge import CallFailed, Judge, _retry_after, resolve
from rlctl.evaluator.prices import PRICES, Usage, most_tokens, usage_of
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


def test_a_key_echoed_where_an_answer_is_cut_is_taken_out() -> None:
    spec = resolve(JudgeConfig(preset="local", model="m", api_key_env="KEY"), {"KEY": KEY})
    judge = Judge(spec, timeout_s=1, max_tries=1, max_wait_s=1)
    for places in range(320):
        message = judge._redacted("x" * places + KEY)
        assert "sk-very" not in message
        assert len(message) <= 300


def test_a_key_in_a_reply_is_taken_out() -> None:
    class Echo(StandIn):
        def _completion(self, fault: str, request: Any, user: str) -> dict[str, Any]:
            completion = super()._completion(fault, request, user)
            completion["choices"][0]["message"]["content"] = f"your key is {KEY}"
            return completion

    async def run() -> list[str]:
        said = []
        async with Echo(["ok"]) as server:
            config = JudgeConfig(preset="local", model="m", base_url=server.base_url, api_key_env="KEY")
            judge = Judge(resolve(config, {"KEY": KEY}), timeout_s=5, max_tries=1, max_wait_s=0.1)
            said.append((await judge.ask(MESSAGES, 10)).content)
            monkey = {"error": {"message": f"no such key: {KEY}"}}
            server._completion = lambda *_: monkey  # type: ignore[method-assign]
            with pytest.raises(CallFailed) as failed:
                await judge.ask(MESSAGES, 10)
            said.append(str(failed.value))
            await judge.close()
        return said

    assert asyncio.run(run()) == [
        "your key is [key]", "the API answered 200 with an error: no such key: [key] (1 tries)",
    ]  # fmt: skip


def test_a_key_is_used_as_it_was_meant_or_refused_without_being_told() -> None:
    assert resolve(JudgeConfig(), {"DEEPSEEK_API_KEY": f" {KEY}\r\n"}).api_key == KEY
    for wrong in (f"{KEY}\x00", f"{KEY}é", f"{KEY}\n{KEY}"):
        with pytest.raises(ConfigError, match="set DEEPSEEK_API_KEY anew") as told:
            resolve(JudgeConfig(), {"DEEPSEEK_API_KEY": wrong})
        assert KEY not in told.value.message


@pytest.mark.parametrize("url, words", [
    ("api.deepseek.com", "must begin with http"),
    ("ftp://x/v1", "must begin with http"),
    ("http://", "must begin with http"),
    ("https://user:sk-1@host/v1", "a key belongs into the environment"),
    ("https://host/v1?api_key=sk-1", "a key belongs into the environment"),
])  # fmt: skip
def test_an_address_is_checked_before_anything_is_asked(url: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as told:
        load(EvaluatorConfig, None, [f'judges=[{{base_url="{url}"}}]'])
    assert "sk-1" not in told.value.message
    with pytest.raises(ConfigError, match="not the key") as told:
        load(EvaluatorConfig, None, ['judges=[{api_key_env="sk-1"}]'])
    assert "sk-1" not in told.value.message


def test_numbers_are_finite() -> None:
    for wrong in (
        {"max_cost": math.inf}, {"max_wait_s": math.nan}, {"seed": -1}, {"pass_k": [0]}, {"concurrency": -1},
        {"judges": [{"price": {"input_hit": math.inf, "input_miss": 1, "output": 1}}]}, {"max_cost": 0},
    ):  # fmt: skip
        with pytest.raises(ValidationError):
            EvaluatorConfig.model_validate(wrong)


def test_a_server_on_this_machine_needs_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "socks5://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    replies, _, _ = _ask([])
    assert replies[0].finish_reason == "stop"
    with pytest.raises(ConfigError, match="proxy"):
        Judge(resolve(JudgeConfig(), {"DEEPSEEK_API_KEY": KEY}), timeout_s=1, max_tries=1, max_wait_s=1)


def test_only_openai_hears_of_the_organisation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_ORG_ID", "org-1")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj-1")

    def told(preset: Any) -> set[str]:
        spec = resolve(JudgeConfig(preset=preset), {"DEEPSEEK_API_KEY": KEY, "OPENAI_API_KEY": KEY})
        headers = Judge(spec, timeout_s=1, max_tries=1, max_wait_s=1)._client.default_headers
        return {str(value) for value in headers.values()} & {"org-1", "proj-1"}

    assert told("deepseek") == set()
    assert told("openai") == {"org-1", "proj-1"}


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


def test_openai_is_asked_in_its_own_words() -> None:
    keys = {"OPENAI_API_KEY": "k"}
    spec = resolve(JudgeConfig(preset="openai"), keys)
    assert spec.limit == "max_completion_tokens"
    assert "temperature" not in spec.body
    assert spec.body["reasoning_effort"] == "low"
    assert "reasoning_effort" not in resolve(JudgeConfig(preset="openai", thinking=True), keys).body
    plain = resolve(JudgeConfig(preset="openai", model="gpt-4.1-mini"), keys).body
    assert plain == {"temperature": 0.0, "response_format": {"type": "json_object"}}


@pytest.mark.parametrize("text, seconds", [
    ("7", 7.0), ("0.5", 0.5), ("Fri, 31 Dec 1999 23:59:59 GMT", None), ("soon", None), ("nan", None), ("-1", None),
    ("1e9", None), ("", None),
])  # fmt: skip
def test_retry_after(text: str, seconds: float | None) -> None:
    assert _retry_after({"retry-after": text}) == seconds


def test_retry_after_may_be_a_date() -> None:
    when = _retry_after({"retry-after": format_datetime(datetime.now(UTC) + timedelta(seconds=30))})
    assert when is not None
    assert 28 <= when <= 30


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


@pytest.mark.parametrize("text", ["plain words", "数学题", "😀🎉", "\u0e01\u0e34", "\ud800"])
def test_a_text_has_no_more_tokens_than_bytes(text: str) -> None:
    assert most_tokens([{"content": text * 100}]) >= len((text * 100).encode("utf-8", "replace"))
