"""`train_kto`."""

from __future__ import annotations

from typing import Any

from rlctl.migrate import offline
from rlctl.migrate.command_line import CommandLine
from rlctl.migrate.common import template
from rlctl.migrate.draft import Draft
from rlctl.migrate.rules import Table, dropped, number, text

#: What OpenRLHF puts around a prompt where no template is given.
DEFAULT_TEMPLATE = "User: {}\nAssistant: "

TABLE: Table = {
    **offline.TABLE,
    "beta": number("beta"),
    "desirable_loss_weight": number("desirable_weight"),
    "undesirable_loss_weight": number("undesirable_weight"),
    "ref_pretrain": text("reference.model"),
    "vanilla_loss": dropped("the reference point is that of the whole step"),
}


def finish(draft: Draft, line: CommandLine) -> None:
    """What several flags say together."""
    data: dict[str, Any] = {
        "input_key": line.text("input_key", "input"),
        "output_key": line.text("output_key"),
        "label_key": line.text("label_key", "label"),
        **template(draft, line, DEFAULT_TEMPLATE),
    }
    if draft.get("beta") is None:
        draft.set("beta", 0.01)
    offline.finish(draft, line, data=data, lengths=offline.lengths(line, 2048), rate=1e-5)
