"""What is known about each record: gold, the rules' grades, every judge's verdict, and what was decided."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from rlctl.evaluator.records import Record
from rlctl.grading.grade import PairGrade, grade_pair

Values = dict[str, bool | str | None]

#: Measures of a record that a judge decides, and those of the rules.
JUDGED = ("distinguishes", "switches", "a_right", "b_right", "both_right")
RULED = ("a_right_rules", "b_right_rules", "both_right_rules")
#: Measures of a data set that are shares of a part of it.
CONDITIONAL = ("both_right_given_switch", "both_right_given_no_switch")


@dataclass(slots=True)
class Verdict:
    """One judge's verdict on one record, or why there is none."""

    values: Values | None = None
    unscored: str = ""


@dataclass(slots=True)
class Row:
    """One record on its way through the evaluation.

    verdicts, swapped: by judge; in `swapped` the problems were listed the other way round and the values are mapped
    back. measures: None where unscored; reasons: why, by measure.
    """

    record: Record
    status: str = ""
    gold_a: str | None = None
    gold_b: str | None = None
    extracted_a: str | None = None
    extracted_b: str | None = None
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    swapped: dict[str, Verdict] = field(default_factory=dict)
    measures: dict[str, bool | None] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    def grade(self, output: str) -> None:
        """The rules' grades, where gold is known."""
        known = self.gold_a is not None and self.gold_b is not None
        grades: PairGrade | None = grade_pair(output, self.gold_a or "", self.gold_b or "") if known else None
        if grades is None:
            for name in RULED:
                self.measures[name] = None
                self.reasons[name] = self.status
            return
        self.extracted_a, self.extracted_b = _short(grades.a.extracted), _short(grades.b.extracted)
        self.measures["a_right_rules"] = grades.a.equal
        self.measures["b_right_rules"] = grades.b.equal
        self.measures["both_right_rules"] = grades.a.equal and grades.b.equal

    def decide(self, booleans: Iterable[str]) -> None:
        """Fills the judged measures from the verdicts; by the rules' grades where no model judges."""
        if not self.verdicts:
            for name in ("a_right", "b_right", "both_right"):
                self._set(name, self.measures[f"{name}_rules"], self.reasons.get(f"{name}_rules", ""))
            for name in ("distinguishes", "switches"):
                self._set(name, None, "no judge was asked")
            return
        for name in booleans:
            gold_missing = name in ("a_right", "b_right") and (self.gold_a is None or self.gold_b is None)
            value, reason = (None, self.status) if gold_missing else self._majority(name)
            self._set(name, value, reason)
        a, b = self.measures.get("a_right"), self.measures.get("b_right")
        reason = self.reasons.get("a_right") or self.reasons.get("b_right") or "not asked by the template"
        self._set("both_right", None if a is None or b is None else a and b, reason)

    def _majority(self, name: str) -> tuple[bool | None, str]:
        votes = [v.values.get(name) for v in self.verdicts.values() if v.values is not None]
        yes, no = votes.count(True), votes.count(False)
        if yes == no:
            faults = [verdict.unscored for verdict in self.verdicts.values() if verdict.unscored]
            if yes:
                return None, "the judges are divided"
            return None, faults[0] if faults else "the judge did not say"
        return yes > no, ""

    def _set(self, name: str, value: bool | None, reason: str) -> None:
        self.measures[name] = value
        if value is None:
            self.reasons[name] = reason

    @property
    def unscored(self) -> str:
        """Why the record has no whole verdict; empty when it has one."""
        missing = [name for name in JUDGED if name in self.measures and self.measures[name] is None]
        return self.reasons.get(missing[0], "") if missing else ""


def mapped_back(values: Values) -> Values:
    """The values of a swapped question in terms of A and B as they stand in the prompt."""
    back = dict(values)
    for first, second in (("a_right", "b_right"), ("answer_a", "answer_b")):
        if first in values and second in values:
            back[first], back[second] = values[second], values[first]
    return back


def _short(text: str | None) -> str | None:
    return text if text is None or len(text) <= 80 else text[:79] + "…"
