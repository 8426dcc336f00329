"""`train_sft`."""

from __future__ import annotations

from typing import Any

from rlctl.migrate import offline
from rlctl.migrate.command_line import CommandLine
from rlctl.migrate.common import template
from rlctl.migrate.draft import Draft
from rlctl.migrate.rules import Table, together

TABLE: Table = {**offline.TABLE, "pretrain_mode": together, "multiturn": together}


def finish(draft: Draft, line: CommandLine) -> None:
    """What several flags say together."""
    offline.finish(draft, line, data=responses(draft, line), lengths=offline.lengths(line, 2048), rate=5e-6, epochs=2)


def responses(draft: Draft, line: CommandLine, output: str = "", default_template: str = "") -> dict[str, Any]:
    """Prompts with responses; `output` is the column where none is named."""
    data: dict[str, Any] = {"input_key": line.text("input_key", "input")}
    output = line.text("output_key", output)
    if "pretrain_mode" in line.flags:
        data["pretrain"] = True
        for name in ("output_key", "apply_chat_template", "input_template", "multiturn", "tokenizer_chat_template"):
            if name in line.flags:
                draft.drop(line.written(name), "pre-training learns the text as it is")
        return data
    data |= template(draft, line, default_template)
    if output:
        data["output_key"] = output
    elif "apply_chat_template" in line.flags and "multiturn" not in line.flags:
        draft.note("every assistant turn of a chat is learnt; without --multiturn OpenRLHF learns the last alone")
    return data
