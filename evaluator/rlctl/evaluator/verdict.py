"""Reads a judge's reply: rightly or not at all. A reply that cannot be read is never "wrong" and never a default."""

from __future__ import annotations

import ast
import json
import re
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, StrictBool, ValidationError, create_model, field_validator

from rlctl.evaluator.template import Template

_THOUGHT = re.compile(r"^.*</(?:think|thinking|thought)>", re.S | re.I)
_FENCE = re.compile(r"```[a-zA-Z0-9]*\s*\n?(.*?)```", re.S)
_FIRST_THOUGHT = re.compile(r"^\s*<(think|thinking|thought)>.*?</\1>", re.S | re.I)
_AROUND = re.compile(r"\A```[a-zA-Z0-9]*\s*\n(.*)```\Z", re.S)
#: Replies longer than this are cut before parsing, characters.
MAX_REPLY = 200_000
#: Objects in one reply that are tried, from its end.
MOST_OBJECTS = 64


class Unreadable(Exception):
    """The reply is no verdict; the text says why."""


class _Base(BaseModel):
    model_config = ConfigDict(extra="ignore")

    @field_validator("*", mode="before")
    @classmethod
    def _plain(cls, value: object) -> object:
        if isinstance(value, str) and value.strip().lower() in ("true", "false"):
            return value.strip().lower() == "true"
        if isinstance(value, str) and value.strip().lower() in ("null", "none"):
            return None
        return value


def _text(cls: type[BaseModel], value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    raise ValueError("must be text")


def schema(template: Template) -> type[BaseModel]:
    """The pydantic model of a template's reply."""
    fields: dict[str, Any] = {}
    for name, spec in template.fields.items():
        kind: Any = StrictBool | None if spec.type == "boolean" else Any
        fields[name] = (kind, Field(...) if spec.required else Field(None))
    texts = [name for name, spec in template.fields.items() if spec.type == "text"]
    validators = {"texts": field_validator(*texts, mode="after")(_text)} if texts else {}
    return create_model("Verdict", __base__=_Base, __validators__=validators, **fields)


def parse_reply(reply: str, model: type[BaseModel], finish_reason: str = "stop") -> dict[str, bool | str | None]:
    """The verdict in a reply: fenced, wrapped in words or `<think>`, or with Python's `True`. Raises Unreadable."""
    whole = reply[:MAX_REPLY].lstrip("\ufeff")
    if not whole.strip():
        raise Unreadable("blank reply")
    text = _THOUGHT.sub("", whole)
    faults: list[str] = []
    # First the whole, and the whole after a first thought: a verdict may itself speak of `</think>`.
    alone = (_AROUND.sub(r"\1", part.strip()) for part in (whole, _FIRST_THOUGHT.sub("", whole)))
    for candidate in dict.fromkeys((*alone, *_candidates(text))):
        value = _decode(candidate)
        if not isinstance(value, dict):
            continue
        try:
            return model.model_validate(value).model_dump()
        except ValidationError as error:
            first = error.errors()[0]
            faults.append(f"{'.'.join(map(str, first['loc']))}: {first['msg']}")
    if faults:
        raise Unreadable(f"JSON without the wanted form ({faults[-1]})")
    if finish_reason == "length":
        raise Unreadable("reply cut by max_tokens")
    if not text.strip():
        raise Unreadable("only a thought, no verdict")
    raise Unreadable("cut JSON" if "{" in text else "no JSON in the reply")


def _candidates(text: str) -> list[str]:
    """Texts that may be the verdict, the likeliest first: the whole, fenced blocks, objects from the end."""
    found = [text.strip()]
    found += [block.strip() for block in reversed(_FENCE.findall(text))]
    return found + _objects(text)[: -MOST_OBJECTS - 1 : -1]


def _objects(text: str) -> list[str]:
    """Balanced top-level `{...}`; braces inside strings do not count."""
    objects: list[str] = []
    depth, begin, quote, skip = 0, 0, "", False
    for index, char in enumerate(text):
        if skip:
            skip = False
        elif quote:
            if char == "\\":
                skip = True
            elif char == quote:
                quote = ""
        elif depth and char == '"':
            quote = char
        elif char == "{":
            begin = index if depth == 0 else begin
            depth += 1
        elif char == "}" and depth:
            depth -= 1
            if depth == 0:
                objects.append(text[begin : index + 1])
    return objects


def _decode(text: str) -> object:
    """JSON, or a Python literal of the same shape (read, never run)."""
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        pass
    if len(text) > 20_000:
        return None
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        return None
