"""`train_dpo`."""

from __future__ import annotations

from rlctl.migrate import offline
from rlctl.migrate.command_line import CommandLine
from rlctl.migrate.draft import Draft
from rlctl.migrate.rm import pairs
from rlctl.migrate.rules import Table, number, on, text, together

TABLE: Table = {
    **offline.TABLE,
    "beta": number("beta"),
    "ipo": on("loss", value="ipo"),
    "label_smoothing": together,
    "nll_loss_coef": number("nll_coef"),
    "ref_pretrain": text("reference.model"),
}


def finish(draft: Draft, line: CommandLine) -> None:
    """What several flags say together."""
    smoothing = line.number("label_smoothing", 0)
    if smoothing and draft.get("loss") == "ipo":
        draft.drop(line.written("label_smoothing"), "IPO has no label smoothing")
    elif smoothing:
        draft.set("label_smoothing", smoothing)
    offline.finish(draft, line, data=pairs(draft, line), lengths=offline.lengths(line, 512), rate=1e-5, sequences=2)
