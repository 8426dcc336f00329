"""Asks a model behind an OpenAI-compatible API for verdicts.

Retries live here alone (the SDK's are off): busy answers and broken connections are tried again with growing, jittered
pauses, final answers are not, and each call has one total deadline, because an API may send blank lines for ever.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from rlctl.core.errors import ConfigError
from rlctl.evaluator.config import JudgeConfig, PriceConfig
from rlctl.evaluator.journal import Reply, Stopped
from rlctl.evaluator.prices import PRICES


@dataclass(frozen=True)
class Preset:
    """Defaults of a kind of judge."""

    model: str
    base_url: str
    api_key_env: str
    limit: str = "max_tokens"
    """Name of the field that bounds a reply."""


PRESETS = {
    "deepseek": Preset("deepseek-flash", "https://api.deepseek.com", "DEEPSEEK_API_KEY"),
    "openai": Preset("gpt-5-mini", "https://api.openai.com/v1", "OPENAI_API_KEY", "max_completion_tokens"),
    "local": Preset("", "http://127.0.0.1:8000/v1", ""),
}

#: Stops the whole run: no other record would fare better.
STOPPING = {401: "the key is not accepted", 402: "the balance is used up", 403: "access is refused", 404: "not found"}
#: Final for one record.
FINAL = {400, 413, 422}
#: OpenAI's reasoning models refuse a temperature and are told how hard to think.
_REASONING = re.compile(r"^(gpt-5|o\d)")


class CallFailed(Exception):
    """One call ended without a reply; the text says why."""


@dataclass(frozen=True)
class JudgeSpec:
    """A judge with all defaults filled in."""

    name: str
    model: str
    base_url: str
    api_key: str = field(repr=False)
    body: Mapping[str, Any]
    max_tokens: int
    price: PriceConfig | None
    key_hint: str
    limit: str = "max_tokens"

    @property
    def identity(self) -> str:
        """What a verdict depends on besides template and sample."""
        return json.dumps([self.model, self.base_url, self.body, self.max_tokens], sort_keys=True)


def resolve(config: JudgeConfig, environment: Mapping[str, str] = os.environ, *, need_key: bool = True) -> JudgeSpec:
    """Fills in the preset and reads the key. Raises ConfigError naming what is missing."""
    preset = PRESETS[config.preset]
    model, base_url = config.model or preset.model, config.base_url or preset.base_url
    variable = config.api_key_env or preset.api_key_env
    if not model:
        raise ConfigError(f"the judge {config.preset!r} needs a model: --judge-model NAME")
    key = environment.get(variable, "").strip() if variable else ""
    if variable and not key and need_key:
        raise ConfigError(
            f"no key for the judge {config.preset!r}: set {variable} in the environment "
            "(or --judge rules, which asks no model)"
        )
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(f"the key in {variable} holds a character that no key has; set {variable} anew")
    body = {**_sampling(config, model), **config.extra_body}
    return JudgeSpec(
        config.name or config.preset, model, base_url.rstrip("/"), key, body, config.max_tokens,
        config.price or PRICES.get(model),
        f"set {variable}" if variable else "check base_url", preset.limit,
    )  # fmt: skip


def _sampling(config: JudgeConfig, model: str) -> dict[str, Any]:
    """The fields of a request that shape the reply."""
    body: dict[str, Any] = {}
    reasoning = config.preset == "openai" and _REASONING.match(model)
    if config.temperature is not None or not reasoning:
        body["temperature"] = config.temperature or 0.0
    if reasoning and not config.thinking:
        body["reasoning_effort"] = "low"
    if config.json_mode:
        body["response_format"] = {"type": "json_object"}
    if config.preset == "deepseek":
        body["thinking"] = {"type": "enabled" if config.thinking else "disabled"}
    return body


class Judge:
    """One judge's connection; `ask` is safe to call concurrently. Close it with `await close()`."""

    def __init__(self, spec: JudgeSpec, *, timeout_s: float, max_tries: int, max_wait_s: float, seed: int = 0) -> None:
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient

        self.spec = spec
        self.retries = 0
        self._timeout_s = timeout_s
        self._max_tries = max_tries
        self._max_wait_s = max_wait_s
        self._random = random.Random(seed)
        # The deadline around a whole call is ours; the SDK's own would be reset by every blank line.
        # Without TLS there is nothing to verify, and loading the certificates is most of a short run.
        # A server on this machine is not reached through a proxy, whatever the environment says.
        plain = None
        try:
            if spec.base_url.startswith("http://"):
                plain = DefaultAsyncHttpxClient(
                    verify=False, follow_redirects=False, timeout=timeout_s, trust_env=not _is_loopback(spec.base_url)
                )
            self._client = AsyncOpenAI(
                api_key=spec.api_key or "none",
                base_url=spec.base_url,
                max_retries=0,
                timeout=timeout_s,
                default_headers={"Accept-Encoding": "identity"},
                http_client=plain,
            )
        except (ImportError, ValueError) as error:
            raise ConfigError(f"the proxy that the environment names cannot be used: {error}") from error
        if not (urlsplit(spec.base_url).hostname or "").endswith("openai.com"):
            # The SDK would tell every server the organisation that the environment names.
            self._client.organization = self._client.project = None

    async def close(self) -> None:
        await self._client.close()

    async def ask(self, messages: Sequence[Mapping[str, str]], max_tokens: int) -> Reply:
        """One reply. Raises CallFailed when there is none for this record, Stopped when the run must end."""
        fault = ""
        for attempt in range(self._max_tries):
            if attempt:
                self.retries += 1
            try:
                async with asyncio.timeout(self._timeout_s):
                    return await self._once(messages, max_tokens)
            except _Busy as busy:
                fault = str(busy)
                pause = busy.retry_after
            except TimeoutError:
                fault, pause = f"no whole reply within {self._timeout_s:g} s", None
            if attempt + 1 < self._max_tries:
                await asyncio.sleep(self._pause(attempt, pause))
        raise CallFailed(f"{self._redacted(fault)} ({self._max_tries} tries)")

    def _pause(self, attempt: int, asked: float | None) -> float:
        """What the server asked for, or exponential backoff with full jitter; at most `max_wait_s`."""
        if asked is not None:
            return min(asked + self._random.uniform(0, 0.25), self._max_wait_s)
        return min(self._random.uniform(0.25, 1.0) * 2.0**attempt, self._max_wait_s)

    async def _once(self, messages: Sequence[Mapping[str, str]], max_tokens: int) -> Reply:
        import openai

        body = {"model": self.spec.model, "messages": messages, self.spec.limit: max_tokens, **self.spec.body}
        try:
            # The typed method walks through every parameter of the API first, which costs more than the call.
            response = await self._client.post("/chat/completions", cast_to=object, body=body)
        except openai.APIStatusError as error:
            raise self._of_status(error.status_code, _message(error), error.response.headers) from None
        except openai.APIError as error:
            raise _Busy(f"connection failed: {_cause(error)}") from None
        except ValueError:
            raise _Busy("the API's answer is not JSON") from None
        reply = _reply(response)
        return replace(reply, content=self._without_key(reply.content), model=self._without_key(reply.model))

    def _of_status(self, status: int, message: str, headers: Mapping[str, str]) -> Exception:
        message = self._redacted(message)
        if status in STOPPING:
            how = {
                401: f"{self.spec.key_hint} to a valid key", 402: "top up the balance", 403: f"{self.spec.key_hint}",
                404: f"check --base-url and --judge-model (now {self.spec.model!r} at {self.spec.base_url})",
            }[status]  # fmt: skip
            return Stopped(
                f"{self.spec.name}: HTTP {status}, {STOPPING[status]} ({message}). Every verdict so far is kept: "
                f"{how}, then give the same command again; it asks only for what is missing.",
                status=status,
            )
        if status in FINAL or (400 <= status < 500 and status not in (408, 409, 425, 429)):
            return CallFailed(f"HTTP {status}: {message}")
        return _Busy(f"HTTP {status}: {message}", _retry_after(headers))

    def _redacted(self, message: str) -> str:
        return " ".join(self._without_key(message).split())[:300]

    def _without_key(self, text: str) -> str:
        return text.replace(self.spec.api_key, "[key]") if self.spec.api_key else text


class _Busy(Exception):
    """Worth another try."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


def _reply(body: Any) -> Reply:
    """The message of a response; a body with `error` or without a message is worth another try, never a verdict."""
    if not isinstance(body, dict) or body.get("error"):
        error = body.get("error") if isinstance(body, dict) else None
        text = error.get("message") if isinstance(error, dict) else error
        raise _Busy(f"the API answered 200 with an error: {text}")
    choices = body.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    message = choice.get("message")
    if not isinstance(message, dict):
        raise _Busy("the API answered 200 without a message")
    content = message.get("content")
    usage = body.get("usage")
    return Reply(
        content if isinstance(content, str) else "",
        str(choice.get("finish_reason") or ""),
        str(body.get("model") or ""),
        usage if isinstance(usage, dict) else {},
    )


def _message(error: Any) -> str:
    body = error.body
    if isinstance(body, dict):
        inner = body.get("error", body)
        if isinstance(inner, dict) and inner.get("message"):
            return str(inner["message"])
    return str(error.message)


def _cause(error: BaseException) -> str:
    cause = error.__cause__ or error
    return f"{type(cause).__name__} {cause}".strip()


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """The pause a server asks for, seconds; it may say so as a number or as a date."""
    text = headers.get("retry-after", "")
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(text).timestamp() - time.time()
        except (ValueError, TypeError):
            return None
    return seconds if 0 <= seconds < 3600 else None
