"""Tables on the terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rlctl.evaluator.labels import Language, label
from rlctl.evaluator.records import TOTAL

_ROWS = (
    "distinguishes", "switches", "both_right", "both_right_given_switch", "both_right_given_no_switch",
    "a_right", "b_right", "both_right_rules",
)  # fmt: skip
#: Ids of differing records and bad rows that are named on the terminal; all are in the files.
_NAMED = 8


def show(console: Console, summary: dict[str, Any], language: Language) -> None:
    """Prints the statistics of each data set and what needs attention."""
    summary = plain(summary)
    if summary["mode"] == "single":
        _show_single(console, summary, language)
        return
    for name, entry in summary["data_sets"].items():
        console.print(_table(name, entry, language))
        _agreement_lines(console, entry, language)
    _attention(console, summary, language)


def plain(tree: Any) -> Any:
    """The same without characters that would command the terminal or that it cannot print: names come from files."""
    if isinstance(tree, dict):
        return {plain(key): plain(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [plain(value) for value in tree]
    if isinstance(tree, str):
        return "".join(char if char.isprintable() else "?" for char in tree)
    return tree


def _show_single(console: Console, summary: dict[str, Any], language: Language) -> None:
    for name, entry in summary["data_sets"].items():
        shown = label("all_sets", language) if name == TOTAL else name
        title = f"{escape(shown)}  ({label('records', language)}: {entry['records']})"
        table = Table(title=title, title_justify="left")
        for column in ("measure", "value", "interval", "n", "unscored"):
            table.add_column(label(column, language), justify="left" if column == "measure" else "right")
        for measure, item in entry["measures"].items():
            value = "n/a" if item["value"] is None else f"{item['value']:.1%}"
            interval = "" if item["low"] is None else f"{item['low']:.1%} – {item['high']:.1%}"
            table.add_row(label(measure, language), value, interval, str(item["n"]), str(item["unscored"] or ""))
        console.print(table)
    _bad_rows(console, summary, language)


def _bad_rows(console: Console, summary: dict[str, Any], language: Language) -> None:
    bad = summary["bad_rows"]
    for row in bad[:_NAMED]:
        text = f"{label('bad_rows', language)}: {row['file']}:{row['line']}: {row['reason']}"
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    if len(bad) > _NAMED:
        console.print(f"… + {len(bad) - _NAMED} (summary.json)", markup=False)


def _table(name: str, entry: dict[str, Any], language: Language) -> Table:
    shown = label("all_sets", language) if name == TOTAL else name
    table = Table(title=f"{escape(shown)}  ({label('records', language)}: {entry['records']})", title_justify="left")
    table.add_column(label("measure", language))
    for column in ("value", "interval", "n", "unscored"):
        table.add_column(label(column, language), justify="right")
    extra = [key for key in entry["measures"] if key not in _ROWS and not key.endswith("_rules")]
    for measure in (*_ROWS, *extra):
        share = entry["measures"].get(measure)
        if share is None:
            continue
        value = "n/a" if share["value"] is None else f"{share['value']:.1%}"
        interval = "" if share["value"] is None else f"{share['low']:.1%} – {share['high']:.1%}"
        counts = f"{share['yes']}/{share['n']}"
        table.add_row(escape(label(measure, language)), value, interval, counts, str(share["unscored"] or ""))
    ratio = entry["ratio"]
    table.add_row(
        label("ratio", language),
        "n/a" if ratio["value"] is None else f"{ratio['value']:.2f}",
        "" if ratio["low"] is None else f"{ratio['low']:.2f} – {ratio['high']:.2f}",
        str(ratio["n"]), str(entry["records"] - ratio["n"] or ""),
    )  # fmt: skip
    return table


def _agreement_lines(console: Console, entry: dict[str, Any], language: Language) -> None:
    item = entry["judge_and_rules"]["answers"]
    if item["n"]:
        different = entry["judge_and_rules"]["different"]
        ids = ", ".join(different[:_NAMED]) + (" …" if len(different) > _NAMED else "")
        console.print(
            f"  {label('judge_and_rules', language)}: {_agree(item)}; "
            f"{label('base_rates', language)} {item['first_yes']:.1%} / {item['second_yes']:.1%}"
            + (f"; {label('different', language)}: {ids}" if different else ""),
            markup=False,
        )
    for title, blocks in (("swap", entry["swap"]), ("judges", entry["judges"])):
        for who, items in blocks.items():
            parts = "; ".join(f"{label(name, language)} {_agree(item)}" for name, item in items.items())
            console.print(f"  {label(title, language)} ({who}): {parts}", markup=False)
    gold = ", ".join(f"{status} {count}" for status, count in entry["gold"].items())
    console.print(f"  {label('gold', language)}: {gold}", markup=False)
    for reason, count in entry["unscored"].items():
        console.print(f"  {label('unscored', language)}: {count} × {reason}", markup=False)
    console.print()


def _agree(item: dict[str, Any]) -> str:
    if item["agreement"] is None:
        return "n/a"
    kappa = "n/a" if item["kappa"] is None else f"{item['kappa']:.2f}"
    return f"{item['agreement']:.1%} (κ {kappa}, n {item['n']})"


def _attention(console: Console, summary: dict[str, Any], language: Language) -> None:
    _bad_rows(console, summary, language)
    cost, run = summary["cost"], summary["run"]
    usages = cost["judges"].values()
    if usages:
        tokens = ", ".join(
            f"{sum(usage[key] for usage in usages):,} {word}"
            for key, word in (
                ("input_hit", label("cached", language)),
                ("input_miss", label("new", language)),
                ("output", label("written", language)),
            )
        )
        dollars = ""
        if cost["dollars"] is not None:
            dollars = f" ≈ ${cost['dollars']:.4f} ({label('prices_of', language)} {cost['prices_of']})"
        console.print(f"{label('cost', language)} ({label('tokens', language)}): {tokens}{dollars}", markup=False)
    facts = ", ".join(
        f"{label(name, language)} {run[name]}" for name in ("calls", "from_journal", "repeated", "retries")
    )
    console.print(f"{facts}; {run['seconds']:.1f} s", markup=False)
    if summary["state"] != "done":
        console.print(f"[bold red]{label('stopped', language)}:[/] {escape(summary['message'])}")
