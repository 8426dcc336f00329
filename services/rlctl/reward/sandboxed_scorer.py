"""Rewards from code that is not ours: a user's function, or the verifier of a reasoning-gym task.

Verifiers run in the sandbox as well: some of them evaluate the model's answer as Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlctl.reward.sandbox import Sandbox, SandboxError
from rlctl.reward.scorer import Fault, Item, Outcome, finite

#: What one bad item can do to a call for many.
_CONTAGIOUS = ("REWARD_RAISED", "REWARD_CRASHED", "REWARD_TIMEOUT")


class SandboxedScorer:
    """One call for all items; when it fails because of one of them, one call an item.

    The second round gets `timeout_s` once more, shared evenly, so a call never takes longer than twice `timeout_s`
    (and the time to load the code again).
    """

    def __init__(self, name: str, arguments: Sequence[str], *, memory_mb: int, timeout_s: float) -> None:
        self._sandbox = Sandbox(name, arguments, memory_mb)
        self._timeout_s = timeout_s

    async def load(self) -> None:
        await self._sandbox.load()

    async def score(self, items: list[Item]) -> list[Outcome]:
        try:
            return await self._call(items, self._timeout_s)
        except SandboxError as error:
            fault = Fault(error.reason, error.message)
        if len(items) == 1 or fault.reason not in _CONTAGIOUS:
            return [fault] * len(items)
        return [await self._alone(item, len(items)) for item in items]

    async def _alone(self, item: Item, among: int) -> Outcome:
        share_s = self._timeout_s / among
        try:
            [outcome] = await self._call([item], share_s)
        except SandboxError as error:
            if error.reason != "REWARD_TIMEOUT":
                return Fault(error.reason, error.message)
            return Fault(
                error.reason,
                f"took longer than {share_s:.2g} s, its share of timeout_s ({self._timeout_s:g} s for {among} items): "
                "unless it hangs, raise timeout_s",
            )
        return outcome

    async def close(self) -> None:
        await self._sandbox.close()

    async def _call(self, items: list[Item], timeout_s: float) -> list[Outcome]:
        request = {
            "queries": [item.query for item in items],
            "prompts": [item.prompt for item in items],
            "responses": [item.response for item in items],
            "labels": [item.label for item in items],
            "metadata": [item.metadata for item in items],
        }
        results = await self._sandbox.call(request, timeout_s)
        return [_outcome(result) for result in results]


def _outcome(result: dict[str, Any]) -> Outcome:
    if "reason" in result:
        return Fault(str(result["reason"]), str(result["message"]))
    return finite(result["reward"], result["extra_logs"])
