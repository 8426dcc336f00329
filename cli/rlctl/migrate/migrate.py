"""From an OpenRLHF command line to a recipe.

words ─ command_line.read ─► flags by their classic names ─ the command's table ─ its finish ─► Draft ─► recipe
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tomli_w

from rlctl.core.config import StrictConfig, validate
from rlctl.core.errors import ConfigError
from rlctl.launch.recipe import Recipe
from rlctl.migrate import dpo, kd, kto, ppo, ppo_together, prm, rm, sft
from rlctl.migrate.command_line import CommandLine, read
from rlctl.migrate.common import RUN
from rlctl.migrate.draft import Draft
from rlctl.migrate.rules import Table
from rlctl.offline.config import JOBS

#: Each command's job here, its table, and what it makes of flags that belong together.
COMMANDS: dict[str, tuple[str, Table, Callable[[Draft, CommandLine], None]]] = {
    "train_ppo_ray": ("ppo", {**RUN, **ppo.TABLE}, ppo_together.finish),
    "train_sft": ("sft", sft.TABLE, sft.finish),
    "train_rm": ("rm", rm.TABLE, rm.finish),
    "train_dpo": ("dpo", dpo.TABLE, dpo.finish),
    "train_kto": ("kto", kto.TABLE, kto.finish),
    "train_kd": ("kd", kd.TABLE, kd.finish),
    "train_prm": ("prm", prm.TABLE, prm.finish),
}

OFFLINE: dict[str, type[StrictConfig]] = {str(job): config for job, config in JOBS.items()}


def migrate(words: Sequence[str]) -> Draft:
    """The recipe for the words of a shell command; its settings are valid.

    Raises ConfigError where it is no command of OpenRLHF, a value is missing or none of its kind.
    """
    line = read(words)
    job, table, finish = COMMANDS[line.command]
    draft = Draft()
    if job in OFFLINE:
        draft.set("job", job)
    for name, flag in line.flags.items():
        if name in table:
            table[name](draft, flag)
        else:
            draft.drop(" ".join([flag.written, *flag.values]), f"no flag of {line.command} that is known here")
    if draft.get("model") is None:
        raise ConfigError("--pretrain (or --actor.model_name_or_path) is missing: which model is trained?")
    finish(draft, line)
    validate(OFFLINE.get(job, Recipe), draft.settings)
    return draft


def as_toml(draft: Draft) -> str:
    """The recipe as a file, with what was left and what to know as comments on top."""
    job = draft.get("job", "ppo")
    lines = [f"# Made from an OpenRLHF command line by `rlctl migrate`: rlctl launch {job} THIS_FILE"]
    if draft.left:
        lines.append("#\n# Not carried over:")
        lines += [f"#   {left.flag}: {left.reason}" for left in draft.left]
    if draft.notes:
        lines.append("#\n# To know:")
        lines += [f"#   {note}" for note in draft.notes]
    header = "\n".join(lines).replace("\r", " ")
    return f"{header}\n\n{tomli_w.dumps(_ordered(draft.settings))}"


def _ordered(settings: dict[str, Any]) -> dict[str, Any]:
    """The job, the name and the model first."""
    first = [name for name in ("job", "name", "runs_dir", "model", "seed") if name in settings]
    return {name: settings[name] for name in [*first, *(key for key in settings if key not in first)]}
