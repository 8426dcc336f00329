"""How `rlctl data preview` shows rows: a token's colour says what the model does with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from rlctl.data.config import SourceConfig
from rlctl.data.view import Line, Role, view

#: Two shades each, so that the edge between two tokens is seen.
STYLES: dict[Role, tuple[str, str]] = {
    "read": ("grey70", "grey54"),
    "learnt": ("black on dark_sea_green3", "black on dark_sea_green1"),
    "better": ("black on dark_sea_green3", "black on dark_sea_green1"),
    "worse": ("black on light_coral", "black on light_pink1"),
    "right": ("bold black on dark_sea_green3", "bold black on dark_sea_green3"),
    "wrong": ("bold black on light_coral", "bold black on light_coral"),
}
MEANINGS: dict[Role, str] = {
    "read": "read",
    "learnt": "learnt",
    "better": "to be likelier",
    "worse": "to be less likely",
    "right": "step judged right",
    "wrong": "step judged wrong",
}
#: Around what is learnt, where there are no colours.
MARKS: dict[Role, tuple[str, str]] = {
    "learnt": ("⟦", "⟧"), "better": ("⟦+", "⟧"), "worse": ("⟦-", "⟧"), "right": ("⟦+", "⟧"), "wrong": ("⟦-", "⟧"),
}  # fmt: skip
_VISIBLE = {"\n": "↵\n", "\r": "␍", "\t": "⇥"}


def show(
    console: Console,
    config: SourceConfig,
    items: Sequence[Any],
    counts: Mapping[str, int],
    tokenizer: Any,
    first: int = 0,
    rows: int = 3,
) -> None:
    """Prints some rows and the counts of a data set."""
    name = config.task.name if config.task else config.path or "mixture"
    colours = console.color_system is not None
    used: set[Role] = set()
    for number in range(first, min(first + rows, len(items))):
        lines = view(items[number], tokenizer)
        used.update(token.role for line in lines for token in line.tokens)
        body = [part for line in lines for part in (_title(line), rendered(line, colours))]
        console.print(Panel(Group(*body), title=Text(f"row {number} · {name}"), title_align="left"))
    if used - {"read"}:
        console.print(_legend(used, colours))
    console.print(_summary(name, items, counts))


def rendered(line: Line, colours: bool) -> Text:
    """The tokens of a line; without colours, what is learnt stands in marks."""
    text = Text(no_wrap=False, overflow="fold")
    before: Role = "read"
    for number, token in enumerate(line.tokens):
        if not colours and token.role != before:
            text.append(MARKS[before][1] if before in MARKS else "")
            text.append(MARKS[token.role][0] if token.role in MARKS else "")
        before = token.role
        shown = "".join(_VISIBLE.get(character, character) for character in token.text)
        text.append(shown, style=STYLES[token.role][number % 2] if colours else "")
    if not colours and before in MARKS:
        text.append(MARKS[before][1])
    return text


def _title(line: Line) -> Text:
    learnt = f", {line.learnt} of them learnt from" if line.learnt else ""
    return Text(f"{line.title}: {len(line.tokens)} tokens{learnt}", style="bold")


def _legend(used: set[Role], colours: bool) -> Text:
    text = Text("colours: " if colours else "marks: ")
    for role in MEANINGS:
        if role in used:
            around = MARKS.get(role, ("", "")) if not colours else ("", "")
            text.append(around[0] + MEANINGS[role] + around[1], style=STYLES[role][0] if colours else "")
            text.append("  ")
    return text


def _summary(name: str, items: Sequence[Any], counts: Mapping[str, int]) -> Table:
    read = counts["rows"]
    table = Table(title=f"{name}: {read} row{'s' if read != 1 else ''}", title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    for what, count in counts.items():
        if what == "kept" or (count and what != "rows"):
            table.add_row(what.replace("_", " "), str(count))
    lengths = [_length(item) for item in items]
    table.add_row("tokens of a row, mean", f"{sum(lengths) / len(lengths):.1f}")
    table.add_row("tokens of a row, longest", str(max(lengths)))
    return table


def _length(item: Any) -> int:
    """Tokens of a row; of a pair, of its longer sequence."""
    sizes: Counter[str] = Counter()
    for name in ("prompt_ids", "response_ids", "chosen_ids", "rejected_ids", "input_ids"):
        ids: Sequence[int] = getattr(item, name, ())
        sizes[name] = len(ids)
    answer = max(sizes["response_ids"], sizes["chosen_ids"], sizes["rejected_ids"])
    return sizes["prompt_ids"] + sizes["input_ids"] + answer
