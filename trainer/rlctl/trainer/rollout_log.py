"""rollouts/step-NNNNNN.jsonl: what the policy wrote, for people to read."""

from __future__ import annotations

import json

from rlctl.trainer.config import TrainerConfig
from rlctl.v1 import generation_pb2, journal_pb2, rollout_pb2


class RolloutLog:
    """Writes the first `log.rollouts` prompt groups of each step, and every dropped one with its reason."""

    def __init__(self, config: TrainerConfig) -> None:
        self._folder = config.run_dir / "rollouts"
        self._groups = config.log.rollouts
        self._folder.mkdir(parents=True, exist_ok=True)

    def write(self, settled: journal_pb2.SettledStep) -> None:
        rows = []
        for data in settled.groups[: self._groups]:
            rows.extend(_rows(rollout_pb2.RolloutGroup.FromString(data)))
        for drop in settled.dropped:
            rows.append({"epoch": drop.id.epoch, "prompt": drop.id.prompt, "dropped": drop.reason, "why": drop.message})
        if rows:
            path = self._folder / f"step-{settled.step:06d}.jsonl"
            path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def _rows(group: rollout_pb2.RolloutGroup) -> list[dict[str, object]]:
    return [
        {
            "epoch": group.task.id.epoch,
            "prompt": group.task.id.prompt,
            "sample": number,
            "text": group.task.prompt,
            "response": scored.sample.text,
            "label": group.task.label,
            "reward": scored.reward if scored.HasField("reward") else None,
            "error": scored.reward_error,
            "tokens": len(scored.sample.token_ids),
            "finish": generation_pb2.FinishReason.Name(scored.sample.finish_reason).removeprefix("FINISH_REASON_"),
            "policy_versions": list(scored.sample.policy_versions),
        }
        for number, scored in enumerate(group.samples)
    ]
