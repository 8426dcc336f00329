"""Files as people send them: every bad row is named by file and line, and the rest is read."""

from __future__ import annotations

import json
import os
import tracemalloc
from pathlib import Path

import pytest

from rlctl.core.errors import ConfigError
from rlctl.evaluator.records import MAX_LINE, BadRow, Record, data_sets, read


def _read(path: Path, limit: int = 1000) -> tuple[list[Record], list[BadRow]]:
    items = list(read("set", path, limit, ["answer"]))
    return [x for x in items if isinstance(x, Record)], [x for x in items if isinstance(x, BadRow)]


def test_bom_crlf_blank_lines_and_line_separators(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    rows = [{"prompt": "p1", "output": "a\u2028b\u2029c\x85d\x0b"}, {"prompt": "p2", "output": "two"}]
    text = "\r\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    path.write_bytes(b"\xef\xbb\xbf" + text.replace("\r\n", "\r\n\r\n   \r\n").encode() + b"\r\n\r\n")
    records, bad = _read(path)
    assert bad == []
    assert [record.line for record in records] == [1, 4]
    assert records[0].text().output == "a\u2028b\u2029c\x85d\x0b"
    assert records[1].text().output == "two"


def test_each_bad_row_is_named_by_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    lines = [
        b'{"prompt": "p", "output": "o"}',
        b'{"prompt": "p", "output": ',
        b"[1, 2]",
        b'"text"',
        b'{"prompt": "p"}',
        b'{"output": "o"}',
        b'{"prompt": ["p"], "output": "o"}',
        b'{"prompt": "p", "output": null}',
        b'{"prompt": "p", "output": "\xff\xfe"}',
        b"[" * 100_000,
        b"null",
        b'{"prompt": 5, "output": 7.5}',
    ]
    path.write_bytes(b"\n".join(lines))
    records, bad = _read(path)
    assert [record.line for record in records] == [1, 12]
    assert (records[1].text().prompt, records[1].text().output) == ("5", "7.5")
    assert [row.line for row in bad] == [2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
    assert all(row.file == path.as_posix() for row in bad)
    reasons = {row.line: row.reason for row in bad}
    assert "not JSON" in reasons[2]
    assert reasons[3] == "not an object but a list"
    assert reasons[5] == "no output"
    assert reasons[6] == "no prompt"
    assert reasons[8] == "prompt and output must be text"
    assert reasons[9] == "not UTF-8 at byte 27"


def test_an_empty_file_has_no_records(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    for content in (b"", b"\n \r\n\n"):
        path.write_bytes(content)
        assert _read(path) == ([], [BadRow(path.as_posix(), 1, "the file holds no record")])


def test_what_is_no_file_is_named_and_the_rest_is_read(tmp_path: Path) -> None:
    (tmp_path / "good.jsonl").write_text('{"prompt": "p", "output": "o"}\n')
    (tmp_path / "dangling.jsonl").symlink_to("nowhere")
    (tmp_path / "loop.jsonl").symlink_to("loop.jsonl")
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "folder.jsonl").mkdir()
    (tmp_path / "up").symlink_to(".")
    items = [item for name, path in data_sets(tmp_path) for item in read(name, path, 9, [])]
    assert [item.id for item in items if isinstance(item, Record)] == ["good:1"]
    faults = {Path(item.file).name: item.reason for item in items if isinstance(item, BadRow)}
    assert set(faults) == {"dangling.jsonl", "loop.jsonl", "pipe.jsonl"}
    assert faults["pipe.jsonl"] == "cannot be read: not a regular file"


def test_a_file_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text("{}")

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    assert _read(path) == ([], [BadRow(path.as_posix(), 1, "cannot be read: Permission denied")])


def test_a_folder_that_may_not_be_entered_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    locked = tmp_path / "locked"
    locked.mkdir()
    (tmp_path / "set.jsonl").touch()
    scandir = os.scandir

    def refuse(path: Path) -> object:
        if Path(path) == locked:
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert data_sets(tmp_path) == [("locked", locked), ("set", tmp_path / "set.jsonl")]
    assert _read(locked) == ([], [BadRow(locked.as_posix(), 1, "cannot be read: Permission denied")])
    with pytest.raises(ConfigError, match=r"cannot read the folder .*locked: Permission denied"):
        data_sets(locked)


def test_utf_16_is_named_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    for encoding in ("utf-16", "utf-16-le", "utf-16-be"):
        path.write_bytes('{"prompt": "p", "output": "数"}\n'.encode(encoding))
        records, bad = _read(path)
        assert records == []
        assert bad


def test_a_blank_answer_is_none(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text('{"prompt": "p", "output": "o", "answer_a": "", "answer_b": " \\n", "answer": null}\n')
    record = _read(path)[0][0]
    assert (record.answer_a, record.answer_b, record.answer) == (None, None, None)


def test_lone_surrogates_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text('{"prompt": "p", "output": "x\\ud800y"}\n')
    records, bad = _read(path)
    assert bad == []
    assert records[0].text().output == "x\ud800y"


def test_explicit_answers_may_be_numbers(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text('{"prompt": "p", "output": "o", "answer_a": 72, "answer_b": "10", "answer": 3.5}\n')
    record = _read(path)[0][0]
    assert (record.answer_a, record.answer_b, record.answer) == ("72", "10", "3.5")


def test_reading_stops_at_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text('{"prompt": "p", "output": "o"}\n' * 5 + "broken\n")
    records, bad = _read(path, limit=5)
    assert len(records) == 5
    assert bad == []


def test_equal_prompts_have_the_same_prompt_id(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text('{"prompt": "p", "output": "1"}\n{"prompt": "p", "output": "2"}\n{"prompt": "q", "output": "1"}\n')
    first, second, third = _read(path)[0]
    assert first.prompt_id == second.prompt_id != third.prompt_id


def test_a_hundred_megabytes_are_read_in_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    row = json.dumps({"prompt": "p", "output": "x" * 100_000}).encode() + b"\n"
    with path.open("wb") as file:
        for _ in range(1000):
            file.write(row)
        file.write(b'{"prompt": "p", "output": "' + b"y" * (MAX_LINE + 5) + b'"}\n')
        file.write(b'{"prompt": "last", "output": "z"}\n')
    assert path.stat().st_size > 100 * 2**20
    tracemalloc.start()
    records, bad = _read(path, limit=10_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(records) == 1001
    assert [(row.line, row.reason) for row in bad] == [(1001, "longer than 16 MiB")]
    assert records[-1].text().prompt == "last"
    assert peak < 4 * MAX_LINE


def test_a_file_that_changed_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text('{"prompt": "p", "output": "o"}\n')
    record = _read(path)[0][0]
    path.write_text("x" * 40)
    with pytest.raises(ConfigError, match="changed while it was read"):
        record.text()


def test_data_sets_are_named_by_their_path(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for name in ("b.jsonl", "deep/a.jsonl", "other.json"):
        (tmp_path / name).write_text("")
    assert [name for name, _ in data_sets(tmp_path)] == ["b", "deep/a"]


def test_no_data_set_has_the_name_of_all_of_them(tmp_path: Path) -> None:
    (tmp_path / "(all).jsonl").touch()
    assert [name for name, _ in data_sets(tmp_path)] == ["(all).jsonl"]


def test_a_missing_or_empty_folder_says_the_mend(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no folder"):
        data_sets(tmp_path / "none")
    with pytest.raises(ConfigError, match=r"holds no \.jsonl file"):
        data_sets(tmp_path)
