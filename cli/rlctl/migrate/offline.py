"""What the commands without rollouts have in common."""

from __future__ import annotations

from typing import Any

from rlctl.migrate.command_line import CommandLine
from rlctl.migrate.common import DATA, RUN, data_sets, finish_learner, finish_run, learner_table
from rlctl.migrate.draft import Draft
from rlctl.migrate.rules import Table, dropped, integer, number, text, together

ROOT = "learner"

TABLE: Table = {
    **RUN,
    **DATA,
    **learner_table(ROOT),
    "pretrain": text("model"),
    "learning_rate": number("learner.optimizer.lr"),
    "max_epochs": number("epochs"),
    "train_batch_size": integer("batch_size"),
    "eval_steps": together,
    "logging_steps": integer("log.steps"),
    "ref_offload": dropped("the reference's log-probs are computed before the first step, and it is let go"),
    "teacher_offload": dropped("the teacher stays where it computes"),
}


def finish(
    draft: Draft,
    line: CommandLine,
    *,
    data: dict[str, Any],
    lengths: dict[str, int],
    rate: float,
    epochs: float = 1,
    micro_batch: int = 8,
    sequences: int = 1,
) -> None:
    """Data sets and batches. `sequences` are those of one row: two of a pair."""
    job = draft.get("job")
    finish_run(draft, line, f"openrlhf_train_{job}")
    finish_learner(draft, line, ROOT)
    for path, value in {"learner.optimizer.lr": rate, "epochs": epochs, "batch_size": 128}.items():
        if draft.get(path) is None:
            draft.set(path, value)
    settings = data | lengths
    draft.set("data", data_sets(line, "dataset", "dataset_probs", line.text("dataset_split", "train"), settings))
    _held_out(draft, line, settings)
    size = line.integer("micro_train_batch_size", micro_batch) * sequences
    draft.set("learner.micro_batch_tokens", max(size * max(lengths.values()), 16))
    if line.processes is None:
        draft.note("set learner.ranks to the number of GPUs: the command line does not say it")
    else:
        draft.set("learner.ranks", line.processes)
    draft.note("rows longer than max_len are left out and counted; OpenRLHF cuts some of them")


def _held_out(draft: Draft, line: CommandLine, settings: dict[str, Any]) -> None:
    every = line.integer("eval_steps", -1)
    path = line.text("eval_dataset")
    split = line.text("eval_split", "test" if path else "")
    if not path and split and split != line.text("dataset_split", "train"):
        # Before eval_dataset came, the held-out rows were another split of the same data set.
        path = line.text("dataset").split(",")[0]
    if not path:
        if split:
            draft.drop(line.written("eval_split"), "there is no --eval_dataset, and that split is trained on")
        if every > 0:
            draft.drop(line.written("eval_steps"), "there is no held-out data (--eval_dataset)")
        return
    draft.set("eval_data", {"path": path, **settings, **({"split": split} if split != "train" else {})})
    draft.set("eval_steps", max(every, 0))


def lengths(line: CommandLine, default: int) -> dict[str, int]:
    """`--max_len` as limits of prompt, response and both together."""
    limit = line.integer("max_len", default)
    return {"max_prompt_len": limit, "max_response_len": limit, "max_len": limit}
