"""Gets the verdicts: bounded concurrency, the journal before the network, a budget, and a clean stop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from weakref import WeakValueDictionary

from pydantic import BaseModel

from rlctl.evaluator.config import EvaluatorConfig
from rlctl.evaluator.gold import GoldIndex, Match
from rlctl.evaluator.journal import Journal, Reply, Stopped
from rlctl.evaluator.judge import CallFailed, Judge, JudgeSpec
from rlctl.evaluator.prices import most_tokens
from rlctl.evaluator.records import Text, digest
from rlctl.evaluator.rows import Row, Verdict, mapped_back
from rlctl.evaluator.template import Template
from rlctl.evaluator.verdict import Unreadable, parse_reply


@dataclass(frozen=True)
class Progress:
    """How far an evaluation is. seconds_left is negative while unknown."""

    records_done: int
    records_total: int
    seconds_left: float
    cost: float


class Budget:
    """Admits a call only when the most it can cost still fits; waits for calls in flight first."""

    def __init__(self, limit: float | None, spent: Callable[[], float]) -> None:
        self._limit = limit
        self._spent = spent
        self._reserved = 0.0
        self._changed = asyncio.Condition()

    async def admit(self, most: float) -> None:
        """Reserves the most a call can cost. Raises Stopped when it does not fit with nothing in flight."""
        if self._limit is None:
            return
        async with self._changed:
            while self._spent() + self._reserved + most > self._limit:
                if self._reserved == 0.0:
                    raise Stopped(
                        f"the next call may cost ${most:.4f} and ${self._spent():.4f} of max_cost = ${self._limit:g} "
                        "is spent. Every verdict so far is kept: raise --max-cost and give the same command again; "
                        "it asks only for what is missing."
                    )
                await self._changed.wait()
            self._reserved += most

    async def release(self, most: float) -> None:
        if self._limit is None:
            return
        async with self._changed:
            self._reserved = max(0.0, self._reserved - most)
            if self._reserved < 1e-12:
                self._reserved = 0.0
            self._changed.notify_all()


@dataclass(frozen=True)
class Unit:
    """One question: a row, a judge, an order of the problems."""

    row: Row
    match: Match
    text: Text
    judge: Judge
    swapped: bool
    last: bool


class Asking:
    """Asks every judge about every row and writes the verdicts into the rows."""

    def __init__(
        self,
        config: EvaluatorConfig,
        rows: list[Row],
        gold: GoldIndex,
        template: Template,
        schema: type[BaseModel],
        judges: list[Judge],
        journal: Journal,
        on_progress: Callable[[Progress], None],
    ) -> None:
        self._config = config
        self._rows = rows
        self._gold = gold
        self._template = template
        self._schema = schema
        self._judges = judges
        self._journal = journal
        self._on_progress = on_progress
        self._budget = Budget(config.max_cost, self.cost)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._done = 0
        self._called = 0
        self._first_call = 0.0
        self.stopped: Stopped | None = None

    def cost(self) -> float:
        """US dollars spent in this folder, earlier runs included; judges without a price count nothing."""
        usage = self._journal.usage
        return sum(usage[j.spec.name].cost(j.spec.price) or 0.0 for j in self._judges if j.spec.name in usage)

    async def run(self) -> None:
        """Returns when all is asked or the run is stopped (`stopped` says why). Cancel it to end at once."""
        units = self._units()
        async with asyncio.TaskGroup() as group:
            for _ in range(min(self._config.concurrency, max(1, len(self._rows) * max(1, len(self._judges))))):
                group.create_task(self._work(units))

    async def _work(self, units: Iterator[Unit]) -> None:
        for unit in units:
            try:
                verdict = await self._verdict(unit)
            except Stopped as stopped:
                self.stopped = self.stopped or stopped
                verdict = Verdict(unscored=f"not asked: {stopped.message.split('. ')[0]}")
            self._settle(unit, verdict)
            if unit.last:
                self._done += 1
            self._on_progress(self.progress())
            # With every verdict in the journal nothing else would let other tasks run.
            await asyncio.sleep(0)

    def _settle(self, unit: Unit, verdict: Verdict) -> None:
        name = unit.judge.spec.name
        if unit.swapped:
            unit.row.swapped[name] = verdict
        else:
            unit.row.verdicts[name] = verdict

    def _units(self) -> Iterator[Unit]:
        """Matches, grades and asks row by row, so that this work hides behind waiting for the network."""
        orders = (False, True) if self._config.swap_check else (False,)
        for row in self._rows:
            text, match = prepare(row, self._gold)
            for number, judge in enumerate(self._judges):
                for swapped in orders:
                    last = number == len(self._judges) - 1 and swapped is orders[-1]
                    yield Unit(row, match, text, judge, swapped, last)
            if not self._judges:
                self._done += 1

    async def _verdict(self, unit: Unit) -> Verdict:
        messages = self._template.messages(unit.text, unit.match, swapped=unit.swapped)
        key = journal_key(self._template, unit.judge.spec, messages)
        # Equal records share a verdict: the second waits for the first.
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            verdict = await self._parsed(unit, key, messages)
        if verdict.values is not None and unit.swapped:
            return Verdict(mapped_back(verdict.values))
        return verdict

    async def _parsed(self, unit: Unit, key: str, messages: list[dict[str, str]]) -> Verdict:
        fault = ""
        max_tokens = unit.judge.spec.max_tokens
        journalled = self._journal.attempts(key)
        for attempt in range(self._config.parse_tries):
            if attempt < len(journalled):
                reply = journalled[attempt]
            elif self.stopped is not None:
                return Verdict(unscored=f"not asked: {self.stopped.message.split('. ')[0]}")
            else:
                try:
                    reply = await self._asked(unit.judge, key, attempt, messages, max_tokens)
                except CallFailed as failed:
                    return Verdict(unscored=f"{unit.judge.spec.name}: {failed}")
            try:
                return Verdict(parse_reply(reply.content, self._schema, reply.finish_reason))
            except Unreadable as unreadable:
                fault = str(unreadable)
            if reply.finish_reason == "length":
                max_tokens = 2 * unit.judge.spec.max_tokens
        return Verdict(unscored=f"{unit.judge.spec.name}: {fault} ({self._config.parse_tries} replies)")

    async def _asked(
        self, judge: Judge, key: str, attempt: int, messages: list[dict[str, str]], max_tokens: int
    ) -> Reply:
        most = most_cost(judge.spec, messages, max_tokens)
        await self._budget.admit(most)
        self._first_call = self._first_call or time.monotonic()
        try:
            await self._journal.ask(key, attempt)
            try:
                reply = await judge.ask(messages, max_tokens)
            except (CallFailed, Stopped) as failed:
                await self._journal.failed(key, attempt, str(failed)[:500])
                raise
            self._called += 1
            await self._journal.reply(key, attempt, judge.spec.name, reply)
            return reply
        finally:
            await self._budget.release(most)

    def progress(self) -> Progress:
        left = -1.0
        if self._called >= 3:
            # What the journal held went by in no time and says nothing about the rest.
            per_call = (time.monotonic() - self._first_call) / self._called
            calls_a_record = len(self._judges) * (2 if self._config.swap_check else 1)
            left = per_call * calls_a_record * (len(self._rows) - self._done)
        return Progress(self._done, len(self._rows), left, self.cost())


def prepare(row: Row, gold: GoldIndex) -> tuple[Text, Match]:
    """Reads a row's text, finds its gold and grades it by rules."""
    text = row.record.text()
    match = gold.match(text.prompt, row.record.answer_a, row.record.answer_b)
    row.status, row.gold_a, row.gold_b = match.status, match.answer_a, match.answer_b
    row.grade(text.output)
    return text, match


def journal_key(template: Template, spec: JudgeSpec, messages: list[dict[str, str]]) -> str:
    """Changes with the template, the model, the address, the sampling settings and the sample."""
    return digest(template.id, spec.identity, *(message["content"] for message in messages))[:40]


def most_cost(spec: JudgeSpec, messages: list[dict[str, str]], max_tokens: int) -> float:
    """The most that a call can cost, US dollars; 0 without a price."""
    if spec.price is None:
        return 0.0
    return (most_tokens(messages) * spec.price.input_miss + max_tokens * spec.price.output) / 1_000_000
