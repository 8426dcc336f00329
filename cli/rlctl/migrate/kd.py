"""`train_kd`."""

from __future__ import annotations

from rlctl.core.errors import ConfigError
from rlctl.migrate import offline
from rlctl.migrate.command_line import CommandLine
from rlctl.migrate.draft import Draft
from rlctl.migrate.kto import DEFAULT_TEMPLATE
from rlctl.migrate.rules import Table, number, text, together
from rlctl.migrate.sft import responses

TABLE: Table = {
    **offline.TABLE,
    "teacher_model": text("teacher"),
    "kd_coef": number("alpha"),
    "pretrain_mode": together,
    "multiturn": together,
}


def finish(draft: Draft, line: CommandLine) -> None:
    """What several flags say together."""
    if draft.get("teacher") is None:
        raise ConfigError("--teacher_model is missing: there is nothing to distil")
    if draft.get("alpha") is None:
        draft.set("alpha", 0.4)
    data = responses(draft, line, "output", DEFAULT_TEMPLATE)
    offline.finish(draft, line, data=data, lengths=offline.lengths(line, 2048), rate=5e-6)
