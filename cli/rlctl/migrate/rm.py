"""`train_rm`."""

from __future__ import annotations

from typing import Any

from rlctl.migrate import offline
from rlctl.migrate.command_line import CommandLine
from rlctl.migrate.common import template
from rlctl.migrate.draft import Draft
from rlctl.migrate.rules import Table, choice, dropped, together

TABLE: Table = {
    **offline.TABLE,
    "loss": choice("loss", {"sigmoid": "sigmoid", "logexp": "logexp"}, "the loss is sigmoid or logexp"),
    "margin_loss": together,
    "margin_key": together,
    "compute_fp32_loss": dropped("losses are computed in float32"),
}


def finish(draft: Draft, line: CommandLine) -> None:
    """What several flags say together."""
    data = pairs(draft, line)
    if "margin_loss" in line.flags and draft.get("loss") == "logexp":
        draft.drop(line.written("margin_loss"), "the loss logexp knows no margin")
    elif "margin_loss" in line.flags:
        data["margin_key"] = line.text("margin_key", "margin")
    offline.finish(draft, line, data=data, lengths=offline.lengths(line, 512), rate=9e-6, micro_batch=1, sequences=2)


def pairs(draft: Draft, line: CommandLine) -> dict[str, Any]:
    """Preferences."""
    return {
        "prompt_key": line.text("prompt_key"),
        "chosen_key": line.text("chosen_key", "chosen"),
        "rejected_key": line.text("rejected_key", "rejected"),
        **template(draft, line),
    }
