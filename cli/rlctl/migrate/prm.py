"""`train_prm`."""

from __future__ import annotations

from typing import Any

from rlctl.migrate import offline
from rlctl.migrate.command_line import CommandLine
from rlctl.migrate.draft import Draft
from rlctl.migrate.rules import Table, dropped, together

TABLE: Table = {
    **offline.TABLE,
    "placeholder_token": together,
    "reward_tokens": together,
    "specialize_reward_tokens": dropped("the tokens of the tokenizer are used as they are"),
}


def finish(draft: Draft, line: CommandLine) -> None:
    """What several flags say together."""
    data: dict[str, Any] = {
        "input_key": line.text("input_key", "input"),
        "label_key": line.text("label_key", "label"),
    }
    if "placeholder_token" in line.flags:
        data["placeholder"] = line.text("placeholder_token")
    tokens = line.flags["reward_tokens"].values if "reward_tokens" in line.flags else []
    if len(tokens) == 2:
        data["positive"], data["negative"] = tokens
    elif tokens:
        draft.drop(f"{line.written('reward_tokens')} {' '.join(tokens)}", "there are two: right and wrong")
    for name in ("output_key", "input_template", "apply_chat_template"):
        if name in line.flags:
            draft.drop(line.written(name), "the input is taken as it is")
    draft.note("set soft_labels = true where the labels are probabilities")
    limit = {"max_len": line.integer("max_len", 2048)}
    offline.finish(draft, line, data=data, lengths=limit, rate=1e-6, micro_batch=1)
