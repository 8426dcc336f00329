"""What a flag becomes: the words the tables are written in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlctl.migrate.command_line import Flag
from rlctl.migrate.draft import Draft

Rule = Callable[[Draft, Flag], None]
Table = dict[str, Rule]


def text(*paths: str) -> Rule:
    return _put(paths, Flag.text)


def integer(*paths: str) -> Rule:
    return _put(paths, Flag.integer)


def number(*paths: str) -> Rule:
    return _put(paths, Flag.number)


def pair(*paths: str) -> Rule:
    return _put(paths, lambda flag: flag.numbers(2))


def steps(*paths: str) -> Rule:
    """A number of steps; OpenRLHF's -1 is never, which is 0 here."""
    return _put(paths, lambda flag: max(flag.integer(), 0))


def on(*paths: str, value: Any = True) -> Rule:
    return _put(paths, lambda _: value)


def choice(path: str | tuple[str, ...], values: dict[str, Any], otherwise: str) -> Rule:
    """One of `values`; another is not carried over, for the reason `otherwise`."""

    def rule(draft: Draft, flag: Flag) -> None:
        if flag.text() not in values:
            draft.drop(f"{flag.written} {flag.text()}", otherwise)
            return
        for each in (path,) if isinstance(path, str) else path:
            draft.set(each, values[flag.text()])

    return rule


def dropped(reason: str) -> Rule:
    return lambda draft, flag: draft.drop(" ".join([flag.written, *flag.values]), reason)


def dropped_unless(value: str, reason: str) -> Rule:
    """Not carried over, and not missed where it has the value that changes nothing."""

    def rule(draft: Draft, flag: Flag) -> None:
        if flag.values != [value]:
            draft.drop(" ".join([flag.written, *flag.values]), reason)

    return rule


def secret(reason: str) -> Rule:
    """Like `dropped`, but its value is shown nowhere."""
    return lambda draft, flag: draft.drop(flag.written, reason)


def together(draft: Draft, flag: Flag) -> None:
    """Read by the command itself, together with other flags."""


def _put(paths: tuple[str, ...], read: Callable[[Flag], Any]) -> Rule:
    def rule(draft: Draft, flag: Flag) -> None:
        for path in paths:
            draft.set(path, read(flag))

    return rule
