"""A recipe in the making, and what could not be carried over."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Left:
    """A flag that the recipe does without."""

    flag: str
    """As it was written."""
    reason: str


@dataclass
class Draft:
    """Settings by name, the flags that were left, and what a person should know."""

    settings: dict[str, Any] = field(default_factory=dict)
    left: list[Left] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def set(self, path: str, value: Any) -> None:
        """Sets `a.b.c`."""
        *tables, name = path.split(".")
        node = self.settings
        for table in tables:
            node = node.setdefault(table, {})
        node[name] = value

    def get(self, path: str, default: Any = None) -> Any:
        """The value of `a.b.c`, or the default."""
        node: Any = self.settings
        for name in path.split("."):
            if not isinstance(node, dict) or name not in node:
                return default
            node = node[name]
        return node

    def remove(self, path: str) -> Any:
        """Takes `a.b.c` away, where it is, and returns what it was."""
        *tables, name = path.split(".")
        node: Any = self.settings
        for table in tables:
            node = node.get(table, {})
        return node.pop(name, None)

    def drop(self, flag: str, reason: str) -> None:
        """Names a flag that is not carried over."""
        self.left.append(Left(flag, reason))

    def note(self, text: str) -> None:
        """Says what is meant otherwise, or is to be done by hand."""
        self.notes.append(text)
