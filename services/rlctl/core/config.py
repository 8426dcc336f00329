"""Settings: frozen pydantic models, read once from TOML or JSON with `key=value` overrides on top.

An unknown key fails with the nearest right name; a wrong value fails with the setting's full name,
the override or the file and line it stands in, and what is allowed.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError, model_validator

from rlctl.core.errors import ConfigError

#: Names of runs, checkpoints and tags: safe as a file name and as one part of a subject.
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_\-][A-Za-z0-9_.\-]{0,63}$")]


class StrictConfig(BaseModel):
    """Base of every settings model. The docstring under each field is its documentation.

    The text `none` clears an optional setting: TOML has no null.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True, protected_namespaces=()
    )

    @model_validator(mode="before")
    @classmethod
    def _none_clears(cls, tree: Any) -> Any:
        if not isinstance(tree, dict):
            return tree
        optional = {name for name, field in cls.model_fields.items() if type(None) in get_args(field.annotation)}
        return {key: None if key in optional and value == "none" else value for key, value in tree.items()}


C = TypeVar("C", bound=StrictConfig)


def load(cls: type[C], path: Path | None = None, overrides: Sequence[str] = ()) -> C:
    """Reads `cls` from a `.toml` or `.json` file (or from nothing) with `a.b=value` overrides.

    An override's value is read as TOML where it is valid TOML (`3`, `true`, `[1, 2]`, `"text"`), else as
    plain text. Raises ConfigError.
    """
    tree: dict[str, Any] = {}
    text = ""
    if path is not None:
        try:
            text = path.read_text(encoding="utf-8-sig")
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}. Name an existing settings file.") from error
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"{path} is not UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8"
            ) from error
        tree = parse(text, path)
    for override in overrides:
        set_override(tree, override)
    return validate(cls, tree, source=path, text=text, overrides=overrides)


def parse(text: str, path: Path) -> dict[str, Any]:
    """Parses TOML, or JSON when the name ends so."""
    try:
        tree = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (json.JSONDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: settings must be a table, not a {type(tree).__name__}")
    return tree


def set_override(tree: dict[str, Any], override: str) -> None:
    """Sets `a.b.c=value` in a nested dict; `a.b=none` clears an optional setting."""
    key, equals, raw = override.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"{override!r} is no override; write name=value, for example train.steps=100")
    parts = key.strip().split(".")
    node = tree
    for part in parts[:-1]:
        child = node.get(part)
        if not isinstance(child, dict):
            child = {}
            node[part] = child
        node = child
    node[parts[-1]] = _value(raw.strip())


def _value(raw: str) -> Any:
    try:
        return tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        return raw


def validate(
    cls: type[C], tree: dict[str, Any], *, source: Path | None = None, text: str = "", overrides: Sequence[str] = ()
) -> C:
    """Validates a nested dict; every fault is told in one ConfigError, with the override or the line it came from."""
    try:
        return cls.model_validate(tree)
    except ValidationError as error:
        lines = [_describe(cls, dict(fault), source, text, overrides) for fault in error.errors()]
        raise ConfigError("\n".join(lines)) from None


def _describe(
    cls: type[BaseModel], fault: dict[str, Any], source: Path | None, text: str, overrides: Sequence[str]
) -> str:
    location = [str(part) for part in fault["loc"] if not _is_tag(part)]
    name = ".".join(location) or "(settings)"
    where, unknown = "", fault["type"] == "extra_forbidden"
    override = _override_of(location, overrides, unknown)
    if override is not None:
        where = f"override {override}: "
    elif source is not None:
        line = _line_of(text, location)
        where = f"{source}:{line}: " if line else f"{source}: "
    if unknown:
        hint = _hint(name, list(dict(setting_names(cls))))
        return f"{where}unknown setting {name!r}. {hint}"
    message = fault["msg"].removeprefix("Value error, ")
    if fault["type"] in ("model_type", "dict_type"):
        message = "must be a table, or `none`" if _is_optional(cls, location) else "must be a table; {} is an empty one"
    if fault["type"] == "string_type" and override is not None:
        message = f"must be text; quote it: '{override}=\"...\"'"
    given = fault.get("input")
    shown = f" (given: {given!r})" if isinstance(given, str | int | float | bool) else ""
    return f"{where}{name}: {message}{shown}"


def _is_optional(cls: type[BaseModel] | None, location: list[str]) -> bool:
    """Whether a setting may be `none`."""
    field = None
    for part in location:
        field = cls.model_fields.get(part) if cls is not None else None
        cls = submodel(field.annotation) if field is not None else None
    return field is not None and type(None) in get_args(field.annotation)


def _override_of(location: list[str], overrides: Sequence[str], unknown: bool) -> str | None:
    """Name in the last override that set what stands at `location` or above it; below it, when the key is unknown.

    Its value is not told: it may hold what nobody should read in a log.
    """
    for override in reversed(overrides):
        name = override.partition("=")[0].strip()
        parts = name.split(".")
        if parts == location[: len(parts)] or (unknown and location == parts[: len(location)]):
            return name
    return None


def _hint(name: str, known: list[str]) -> str:
    """Which setting was meant: one of a like name in the same section, of the same name elsewhere, or a close one."""
    section, _, leaf = name.rpartition(".")
    start = f"{section}." if section else ""
    siblings = {full[len(start) :].split(".")[0] for full in known if full.startswith(start)}
    near = [start + one for one in difflib.get_close_matches(leaf, siblings, n=1, cutoff=0.75)]
    near = near or [full for full in known if full.rpartition(".")[2] == leaf]
    near = near or difflib.get_close_matches(name, known, n=1, cutoff=0.75)
    if near:
        return f"Did you mean {near[0]!r}?"
    if section and siblings:
        return f"{section} has: {', '.join(sorted(siblings))}."
    return "`rlctl settings` lists all names."


def _is_tag(part: object) -> bool:
    return isinstance(part, str) and ("[" in part or part.startswith("function-"))


def _line_of(text: str, location: list[str]) -> int | None:
    """Line of a setting in TOML text: the key below its table header, or the header itself."""
    table: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        header = re.match(r"\s*\[\[?\s*([^\]]+?)\s*\]", line)
        if header:
            table = [part.strip().strip("\"'") for part in header[1].split(".")]
            if table == location:
                return number
            continue
        key = re.match(r"\s*([\w.\-\"']+)\s*=", line)
        if key:
            full = table + [part.strip("\"'") for part in key[1].split(".")]
            plain = [part for part in location if not part.isdigit()]
            if full in (location, plain):
                return number
    return None


def setting_names(cls: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """All settings below a model, as (dotted name, pydantic FieldInfo), in order of declaration."""
    for name, field in cls.model_fields.items():
        inner = submodel(field.annotation)
        if inner is not None:
            yield from setting_names(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field


def submodel(annotation: Any) -> type[BaseModel] | None:
    """The settings model inside an annotation such as `X` or `X | None`; lists and maps are leaves."""
    candidates = [annotation, *get_args(annotation)]
    if any(getattr(annotation, "__origin__", None) is kind for kind in (list, tuple, dict)):
        return None
    for candidate in candidates:
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None
