"""The machine-readable summary: every statistic of every data set, of all together, and of the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from typing import Any

from rlctl.evaluator.prices import PRICES_DATE, Usage
from rlctl.evaluator.records import TOTAL, BadRow
from rlctl.evaluator.rows import CONDITIONAL, JUDGED, RULED, Row, Verdict
from rlctl.evaluator.statistics import agreement, ratio, share, share_given


@dataclass
class RunFacts:
    """What happened, apart from what was measured."""

    state: str = "done"
    message: str = ""
    seconds: float = 0.0
    calls: int = 0
    from_journal: int = 0
    repeated: int = 0
    retries: int = 0
    cost: float | None = None
    usage: dict[str, Usage] = field(default_factory=dict)


def summarise(
    rows: Sequence[Row], bad: Sequence[BadRow], extra: Sequence[str], *, resamples: int, seed: int, facts: RunFacts
) -> dict[str, Any]:
    """Everything in `summary.json`. `extra` are boolean measures of a template of one's own."""
    names = list(dict.fromkeys(row.record.dataset for row in rows))
    groups = {name: [row for row in rows if row.record.dataset == name] for name in names}
    if len(names) != 1:
        groups[TOTAL] = list(rows)
    return {
        "version": 1,
        "mode": "pair",
        "state": facts.state,
        "message": facts.message,
        "data_sets": {name: data_set(group, extra, resamples=resamples, seed=seed) for name, group in groups.items()},
        "bad_rows": [asdict(row) for row in bad],
        "cost": cost_facts(facts),
        "run": run_facts(facts),
    }


def cost_facts(facts: RunFacts) -> dict[str, Any]:
    """Tokens and dollars by judge, earlier runs in the folder included."""
    return {
        "dollars": facts.cost,
        "prices_of": PRICES_DATE,
        "judges": {name: asdict(usage) for name, usage in sorted(facts.usage.items())},
    }


def run_facts(facts: RunFacts) -> dict[str, Any]:
    """How the run went. `repeated`: calls that were in flight when a run was killed, and were made again."""
    return {
        "seconds": round(facts.seconds, 3), "calls": facts.calls, "from_journal": facts.from_journal,
        "repeated": facts.repeated, "retries": facts.retries,
    }  # fmt: skip


def data_set(rows: Sequence[Row], extra: Sequence[str], *, resamples: int, seed: int) -> dict[str, Any]:
    """Statistics of one data set."""
    values = {name: [row.measures.get(name) for row in rows] for name in (*JUDGED, *RULED, *extra)}
    prompts = [(row.record.dataset, row.record.prompt_id) for row in rows]
    both, switch = values["both_right"], values["switches"]
    measures = {name: asdict(share(column)) for name, column in values.items()}
    for name, wanted in zip(CONDITIONAL, (True, False), strict=True):
        measures[name] = asdict(share_given(both, switch, wanted))
    return {
        "records": len(rows),
        "prompts": len(set(prompts)),
        "duplicate_prompts": len(rows) - len(set(prompts)),
        "gold": dict(sorted(Counter(row.status for row in rows).items())),
        "measures": measures,
        "ratio": asdict(ratio(both, switch, prompts, resamples=resamples, seed=seed)),
        "unscored": dict(sorted(Counter(row.unscored for row in rows if row.unscored).items())),
        "judge_and_rules": judge_and_rules(rows),
        "judges": judge_agreement(rows),
        "swap": swap_stability(rows),
    }


def judge_and_rules(rows: Sequence[Row]) -> dict[str, Any]:
    """The judge against the rules, on both answers pooled and on "both right"; ids where they differ."""
    judged = [row for row in rows if row.verdicts]
    pooled = agreement(
        [row.measures.get(name) for row in judged for name in ("a_right", "b_right")],
        [row.measures.get(f"{name}_rules") for row in judged for name in ("a_right", "b_right")],
    )
    both = agreement(
        [row.measures.get("both_right") for row in judged], [row.measures["both_right_rules"] for row in judged]
    )
    return {
        "answers": asdict(pooled),
        "both_right": asdict(both),
        "different": [row.record.id for row in judged if differs(row)],
    }


def differs(row: Row) -> bool:
    """Whether judge and rules say different things of A or of B."""
    return any(
        None not in (row.measures.get(name), row.measures.get(f"{name}_rules"))
        and row.measures[name] is not row.measures[f"{name}_rules"]
        for name in ("a_right", "b_right")
    )


def _column(verdicts: Sequence[Verdict | None], name: str) -> list[bool | None]:
    column: list[bool | None] = []
    for verdict in verdicts:
        value = verdict.values.get(name) if verdict is not None and verdict.values is not None else None
        column.append(value if isinstance(value, bool) else None)
    return column


def judge_agreement(rows: Sequence[Row]) -> dict[str, Any]:
    """Each pair of judges, measure by measure; empty with one judge."""
    judges = list(dict.fromkeys(name for row in rows for name in row.verdicts))
    result: dict[str, Any] = {}
    for first, second in combinations(judges, 2):
        result[f"{first} / {second}"] = {
            name: asdict(
                agreement(
                    _column([row.verdicts.get(first) for row in rows], name),
                    _column([row.verdicts.get(second) for row in rows], name),
                )
            )
            for name in JUDGED[:4]
        }
    return result


def swap_stability(rows: Sequence[Row]) -> dict[str, Any]:
    """Each judge against itself with the problems listed the other way round; empty without the check."""
    judges = list(dict.fromkeys(name for row in rows for name in row.swapped))
    return {
        judge: {
            name: asdict(
                agreement(
                    _column([row.verdicts.get(judge) for row in rows], name),
                    _column([row.swapped.get(judge) for row in rows], name),
                )
            )
            for name in JUDGED[:4]
        }
        for judge in judges
    }
