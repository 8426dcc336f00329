"""Rewards from an HTTP service, with OpenRLHF's message: `{"query", "prompts", "labels"}` -> `{"rewards"}`."""

from __future__ import annotations

import asyncio
import json

import httpx

from rlctl.core.errors import UnavailableError
from rlctl.reward.results import BadResultError, read_results
from rlctl.reward.scorer import Fault, Item, Outcome, finite

#: Tries of a call that cannot be made or answers 5xx, and seconds before the second and third.
PAUSES_S = (0.2, 1.0)
#: Statuses of a gateway whose service is down: nothing is wrong with what was asked.
DOWN = (502, 503, 504)
#: Seconds that the first look, whether anything listens, takes at most.
LOOK_S = 5.0
ANSWER_BYTES = 64 << 20


class HttpScorer:
    """POSTs all items in one call; tries again on broken connections and 5xx, `timeout_s` over all tries."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self._url = url
        self._timeout_s = timeout_s
        self._client: httpx.AsyncClient | None = None

    async def load(self) -> None:
        """Raises UnavailableError where nothing listens; later the callers decide how long to wait."""
        self._client = httpx.AsyncClient(timeout=self._timeout_s)
        try:
            await self._client.head(self._url, timeout=LOOK_S)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise UnavailableError(
                f"cannot reach {self._url} ({error}): start the remote reward, or correct its url"
            ) from error
        except httpx.TransportError:
            pass  # Something listens there; it need not know HEAD.

    async def score(self, items: list[Item]) -> list[Outcome]:
        body = {
            "query": [item.query for item in items],
            "prompts": [item.prompt for item in items],
            "labels": [item.label for item in items],
        }
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await self._post(body)
        except TimeoutError:
            answer = Fault("REWARD_TIMEOUT", f"{self._url} did not answer within {self._timeout_s:g} s")
        if isinstance(answer, Fault):
            return [answer] * len(items)
        try:
            return [finite(reward, logs) for reward, logs in read_results(json.loads(answer), len(items))]
        except (ValueError, BadResultError) as error:
            return [Fault("REWARD_BAD_RESULT", f"{self._url}: {error}")] * len(items)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def _post(self, body: dict[str, list[str]]) -> bytes | Fault:
        fault = Fault("REWARD_UNREACHABLE", "")
        for pause in (0.0, *PAUSES_S):
            await asyncio.sleep(pause)
            try:
                status, answer = await self._once(body)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                fault = Fault("REWARD_UNREACHABLE", f"cannot reach {self._url} ({type(error).__name__}: {error})")
                continue
            except httpx.TransportError as error:
                fault = Fault("REWARD_REFUSED", f"{self._url} broke off ({type(error).__name__}: {error})")
                continue
            if status == 200:
                return answer
            reason = "REWARD_UNREACHABLE" if status in DOWN else "REWARD_REFUSED"
            fault = Fault(reason, f"{self._url} answered {status}: {answer[:200].decode(errors='replace')}")
            if status < 500:
                return fault
        return fault

    async def _once(self, body: dict[str, list[str]]) -> tuple[int, bytes]:
        assert self._client is not None
        async with self._client.stream("POST", self._url, json=body) as response:
            answer = b""
            async for chunk in response.aiter_bytes():
                answer += chunk
                if len(answer) > ANSWER_BYTES:
                    return 413, f"the answer is above {ANSWER_BYTES >> 20} MiB".encode()
            return response.status_code, answer
