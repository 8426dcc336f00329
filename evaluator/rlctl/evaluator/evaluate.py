"""One evaluation from the outputs folder to the report.

outputs/*.jsonl ──► records ──► rows ──► ask judges (journal) ──► decide ──► summary ──► report files
                      gold ──────┘└──► grade by rules
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlctl.core.errors import ConfigError
from rlctl.evaluator.asking import Asking, Progress, most_cost, prepare
from rlctl.evaluator.config import EvaluatorConfig
from rlctl.evaluator.files import RESULTS, aside
from rlctl.evaluator.gold import GoldIndex, Match, load_gold
from rlctl.evaluator.journal import Journal
from rlctl.evaluator.judge import Judge, JudgeSpec, resolve
from rlctl.evaluator.prices import most_tokens
from rlctl.evaluator.records import BadRow, Text, data_sets, read
from rlctl.evaluator.rows import CONDITIONAL, JUDGED, RULED, Row
from rlctl.evaluator.summary import RunFacts, summarise
from rlctl.evaluator.template import Template, load_template
from rlctl.evaluator.verdict import schema

JOURNAL = "journal.jsonl"


@dataclass(frozen=True)
class Estimate:
    """What a run would take."""

    records: int
    calls: int
    input_tokens: int
    most_output_tokens: int
    dollars: float | None


@dataclass
class Evaluation:
    """A finished or stopped evaluation: the rows and the summary."""

    config: EvaluatorConfig
    template: Template
    rows: list[Row]
    bad: list[BadRow]
    summary: dict[str, Any]


def judge_specs(config: EvaluatorConfig, *, need_key: bool = True) -> list[JudgeSpec]:
    """The judges with defaults filled in; none for `rules`. Raises ConfigError."""
    specs = [resolve(judge, need_key=need_key) for judge in config.judges if judge.preset != "rules"]
    unpriced = [spec.model for spec in specs if spec.price is None]
    if config.max_cost is not None and unpriced:
        raise ConfigError(
            f"max_cost needs the price of {unpriced[0]}: give --price HIT,MISS,OUTPUT (dollars per million tokens)"
        )
    return specs


def check_chart(config: EvaluatorConfig, template: Template) -> None:
    """Raises ConfigError when the chart is to draw what is never measured."""
    known = [*JUDGED[:2], "both_right", *CONDITIONAL, *JUDGED[2:4], *RULED]
    known += [name for name in template.booleans if name not in known]
    for index, name in enumerate(config.chart):
        if name not in known:
            raise ConfigError(f"chart.{index}: {name!r} is no measure; there are {', '.join(known)}")


def read_rows(config: EvaluatorConfig) -> tuple[list[Row], list[BadRow]]:
    """All records of the outputs folder, without their text."""
    rows: list[Row] = []
    bad: list[BadRow] = []
    # The report may lie below the outputs; it is none of them.
    own = {(config.output_dir / name).resolve() for name in (JOURNAL, RESULTS, aside(RESULTS))}
    for name, path in data_sets(config.outputs):
        if path.is_file() and path.resolve() in own:
            continue
        for item in read(name, path, config.max_samples, config.answer_keys):
            if isinstance(item, BadRow):
                bad.append(item)
            else:
                rows.append(Row(item))
    return rows, bad


def load_index(config: EvaluatorConfig, rows: list[Row], bad: list[BadRow]) -> GoldIndex:
    """Gold for the prompts; not fetched when every record brings its own answers. Rows that are bad go to `bad`."""
    explicit = all(row.record.answer_a is not None and row.record.answer_b is not None for row in rows)
    return GoldIndex([] if explicit and rows else load_gold(config.gold, config.gold_split, bad))


def estimate(config: EvaluatorConfig) -> Estimate:
    """How many calls a run would make and what they may cost, none made. Verdicts in the journal are not deducted."""
    rows, bad = read_rows(config)
    index = load_index(config, rows, bad)
    return estimate_of(config, (prepare(row, index) for row in rows))


def estimate_of(config: EvaluatorConfig, samples: Iterable[tuple[Text, Match]]) -> Estimate:
    """The same for texts and matches that come from elsewhere."""
    template = load_template(config.prompt_template)
    check_chart(config, template)
    specs = judge_specs(config, need_key=False)
    records, calls, tokens, output, dollars = 0, 0, 0, 0, 0.0
    for text, match in samples:
        records += 1
        for swapped in (False, True) if config.swap_check else (False,):
            messages = template.messages(text, match, swapped=swapped)
            for spec in specs:
                calls += 1
                tokens += most_tokens(messages)
                output += spec.max_tokens
                dollars += most_cost(spec, messages, spec.max_tokens)
    known = all(spec.price is not None for spec in specs)
    return Estimate(records, calls, tokens, output, dollars if known else None)


async def evaluate(config: EvaluatorConfig, on_progress: Callable[[Progress], None] = lambda _: None) -> Evaluation:
    """Runs an evaluation in pair mode. Cancelled, it keeps the journal; stopped (402, budget), it tells what it has."""
    template = load_template(config.prompt_template)
    check_chart(config, template)
    specs = judge_specs(config)
    rows, bad = read_rows(config)
    index = load_index(config, rows, bad)
    begin = time.monotonic()
    async with Journal(Path(config.output_dir) / JOURNAL) as journal:
        known, asked = journal.replies, journal.asked
        judges = [
            Judge(
                spec, timeout_s=config.call_timeout_s, max_tries=config.max_tries, max_wait_s=config.max_wait_s,
                seed=config.seed,
            )
            for spec in specs
        ]  # fmt: skip
        asking = Asking(config, rows, index, template, schema(template), judges, journal, on_progress)
        try:
            await asking.run()
        finally:
            await asyncio.gather(*(judge.close() for judge in judges))
        for row in rows:
            row.decide(template.booleans)
        facts = RunFacts(
            state="stopped" if asking.stopped else "done",
            message=asking.stopped.message if asking.stopped else "",
            seconds=time.monotonic() - begin,
            calls=journal.asked - asked,
            from_journal=known,
            repeated=journal.repeated,
            retries=sum(judge.retries for judge in judges),
            cost=asking.cost() if all(spec.price for spec in specs) else None,
            usage={spec.name: journal.usage[spec.name] for spec in specs},
        )
    extra = [name for name in template.booleans if name not in JUDGED]
    summary = summarise(rows, bad, extra, resamples=config.bootstrap, seed=config.seed, facts=facts)
    summary["template"] = template.id
    summary["judges"] = {spec.name: {"model": spec.model, "base_url": spec.base_url} for spec in specs}
    return Evaluation(config, template, rows, bad, summary)
