"""Gold answers, and which of them a prompt asks for."""

from __future__ import annotations

import json
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlctl.core.errors import ConfigError
from rlctl.evaluator.records import BadRow, lines, parsed

#: Columns that may hold a question and its answer.
QUESTION_KEYS = ("question_zh", "question", "problem", "prompt", "query")
ANSWER_KEYS = ("answer_only", "answer", "label", "gold", "final_answer")

#: Characters of a question's beginning by which it is found in a prompt.
_ANCHOR = 12
HUB_FILES = ("*.json", "*.jsonl", "*.parquet")


@dataclass(frozen=True)
class GoldItem:
    """A problem: its texts (languages) and its answer."""

    questions: tuple[str, ...]
    answer: str
    metadata: str = ""


@dataclass(frozen=True)
class Match:
    """What a prompt asks: A, then B. status: `ok`, `explicit`, `gold_unmatched` or `gold_ambiguous`."""

    status: str
    question_a: str = ""
    question_b: str = ""
    answer_a: str | None = None
    answer_b: str | None = None


def load_gold(source: str, split: str = "", bad: list[BadRow] | None = None) -> list[GoldItem]:
    """Reads a json, jsonl or parquet file, or a hub data set, of questions and answers.

    Rows that cannot be used go to `bad`. Raises ConfigError when none can.
    """
    path = Path(source)
    files = [path] if path.is_file() else _hub_files(source)
    items: list[GoldItem] = []
    faults: list[BadRow] = []
    for file in files:
        for number, row in _rows(file):
            if isinstance(row, dict) and split and str(row.get("split", "")) != split:
                continue
            item = gold_item(row) if isinstance(row, dict) else row
            if isinstance(item, GoldItem):
                items.append(item)
            else:
                faults.append(BadRow(file.as_posix(), number, item or "a gold row without question or answer"))
    if not items:
        wanted = f" with split = {split!r}" if split else ""
        first = f"; {faults[0].file}:{faults[0].line}: {faults[0].reason}" if faults else ""
        raise ConfigError(
            f"{source} holds no gold row{wanted}; it needs a question ({', '.join(QUESTION_KEYS[:3])}) "
            f"and an answer ({', '.join(ANSWER_KEYS[:3])}){first}"
        )
    if bad is not None:
        bad += faults
    return items


def gold_item(row: dict[str, Any]) -> GoldItem | None:
    """One problem of a row, None when question or answer is missing."""
    questions = tuple(str(row[key]) for key in QUESTION_KEYS if row.get(key) not in (None, ""))
    answer = next((row[key] for key in ANSWER_KEYS if row.get(key) not in (None, "")), None)
    if not questions or answer is None:
        return None
    return GoldItem(questions, str(answer).rsplit("####", 1)[-1].strip())


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """(line or row from 1, row or why it is bad) of a file. Raises ConfigError when it cannot be read at all."""
    try:
        if path.suffix == ".parquet":
            rows = _table(path)
        elif path.suffix == ".json" and (tree := _tree(path)) is not None:
            rows = tree
        else:
            yield from _json_lines(path)
            return
    except OSError as error:
        raise ConfigError(f"cannot read the gold file {path}: {error.strerror or error}") from error
    for number, row in enumerate(rows, 1):
        yield number, row if isinstance(row, dict) else "a gold row must be an object"


def _table(path: Path) -> list[Any]:
    import pyarrow.parquet

    try:
        rows: list[Any] = pyarrow.parquet.read_table(path).to_pylist()
    except pyarrow.ArrowException as error:
        raise ConfigError(f"{path} is no parquet file: {error}") from error
    return rows


def _tree(path: Path) -> list[Any] | None:
    """The rows of a JSON document; None when it holds one object a line."""
    raw = path.read_bytes()
    try:
        tree = json.loads(raw.removeprefix(b"\xef\xbb\xbf"))
    except (ValueError, RecursionError) as error:
        if raw[:200].lstrip(b"\xef\xbb\xbf \r\n").startswith(b"{"):
            return None
        raise ConfigError(f"{path}: {error}") from error
    rows = tree.get("data", [tree]) if isinstance(tree, dict) else tree
    return rows if isinstance(rows, list) else [rows]


def _json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any] | str]]:
    for number, _, raw in lines(path):
        row = parsed(raw)
        if row is not None:
            yield number, row


def _hub_files(source: str) -> list[Path]:
    is_file = source.endswith((".json", ".jsonl", ".parquet")) or Path(source).exists()
    if source.count("/") != 1 or source.startswith((".", "/")) or is_file:
        raise ConfigError(f"there is no gold file {source}; name a json, jsonl or parquet file, or a hub data set")
    try:
        from huggingface_hub import snapshot_download

        folder = Path(snapshot_download(source, repo_type="dataset", allow_patterns=list(HUB_FILES)))
    except ImportError as error:
        raise ConfigError(f"fetching {source} needs huggingface-hub; install it, or use --gold FILE") from error
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"cannot fetch the gold data set {source} ({type(error).__name__}). Without the hub, name a local file of "
            "the same columns: --gold FILE.jsonl"
        ) from error
    files = sorted(path for pattern in HUB_FILES for path in folder.rglob(pattern))
    if not files:
        raise ConfigError(f"the hub data set {source} holds no json, jsonl or parquet file")
    return files


def normalise_question(text: str) -> str:
    """NFKC without any white space or invisible characters: how questions are compared."""
    text = unicodedata.normalize("NFKC", text)
    return "".join(char for char in text if not char.isspace() and char not in "\u200b\ufeff")


class GoldIndex:
    """Finds gold questions inside prompts in time linear in the prompt's length."""

    def __init__(self, items: Sequence[GoldItem]) -> None:
        self._by_anchor: dict[str, list[tuple[str, int]]] = defaultdict(list)
        self._items = items
        self._answers: dict[str, set[str]] = defaultdict(set)
        for number, item in enumerate(items):
            for question in item.questions:
                plain = normalise_question(question)
                if len(plain) < 4:
                    continue
                if plain not in self._answers:
                    self._by_anchor[plain[:_ANCHOR]].append((plain, number))
                self._answers[plain].add(item.answer)
        self._lengths = sorted({len(anchor) for anchor in self._by_anchor}, reverse=True)

    def match(self, prompt: str, answer_a: str | None = None, answer_b: str | None = None) -> Match:
        """The two problems of a prompt; explicit answers win over those found."""
        found = self.find(prompt)
        if len(found) > 2 and len({number for _, number in found}) == 2:
            # Both problems in two languages.
            found = list({number: (plain, number) for plain, number in reversed(found)}.values())[::-1]
        questions = [self._question(number, plain) for plain, number in found[:2]]
        question_a = questions[0] if len(found) == 2 else ""
        question_b = questions[1] if len(found) == 2 else ""
        if answer_a is not None and answer_b is not None:
            return Match("explicit", question_a, question_b, answer_a, answer_b)
        if len(found) < 2:
            return Match("gold_unmatched", answer_a=answer_a, answer_b=answer_b)
        if len(found) > 2 or any(len(self._answers[plain]) > 1 for plain, _ in found):
            return Match("gold_ambiguous", answer_a=answer_a, answer_b=answer_b)
        answers = [self._items[number].answer for _, number in found]
        return Match("ok", question_a, question_b, answer_a or answers[0], answer_b or answers[1])

    def find(self, prompt: str) -> list[tuple[str, int]]:
        """(normalised question, item number) of every gold question in the prompt, in order, without overlap."""
        text = normalise_question(prompt)
        found: list[tuple[str, int]] = []
        position = 0
        while position < len(text):
            best: tuple[str, int] | None = None
            for length in self._lengths:
                for plain, number in self._by_anchor.get(text[position : position + length], ()):
                    if (best is None or len(plain) > len(best[0])) and text.startswith(plain, position):
                        best = (plain, number)
            if best is None:
                position += 1
            else:
                found.append(best)
                position += len(best[0])
        return found

    def _question(self, number: int, plain: str) -> str:
        return next(text for text in self._items[number].questions if normalise_question(text) == plain)
