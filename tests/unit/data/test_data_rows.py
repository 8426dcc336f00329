"""Where rows come from, and what is said when they cannot."""

from __future__ import annotations

import json

import pytest

from rlctl.core.errors import ConfigError, NotFoundError, UnavailableError
from rlctl.data.config import PromptDataConfig
from rlctl.data.rows import load_rows

ROWS = [{"prompt": "one", "label": "1"}, {"prompt": "two, and more", "label": "2"}]


def write_parquet(path, rows):
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    elif path.suffix == ".csv":
        path.write_text('prompt,label\none,1\n"two, and more",2\n')
    else:
        write_parquet(path, rows)
    return path


def values(config: PromptDataConfig) -> list[dict]:
    return [row.values for row in load_rows(config)]


@pytest.mark.parametrize("name", ["rows.json", "rows.jsonl", "rows.csv", "rows.parquet"])
def test_every_kind_of_file_gives_the_same_rows(tmp_path, name):
    assert values(PromptDataConfig(path=str(write(tmp_path / name, ROWS)))) == ROWS


def test_a_json_file_with_an_object_a_line_is_read_too(tmp_path):
    path = tmp_path / "rows.json"
    path.write_text('{"prompt": "one"}\n\n{"prompt": "two"}\n')
    assert [row.where for row in load_rows(PromptDataConfig(path=str(path)))] == [f"{path}:1", f"{path}:3"]


def test_a_folder_chooses_files_by_split(tmp_path):
    write(tmp_path / "data" / "train-00000-of-00002.parquet", ROWS[:1])
    write(tmp_path / "data" / "train-00001-of-00002.parquet", ROWS[1:])
    write(tmp_path / "test.jsonl", [{"prompt": "held out", "label": "3"}])
    assert values(PromptDataConfig(path=str(tmp_path))) == ROWS
    assert values(PromptDataConfig(path=str(tmp_path), split="test")) == [{"prompt": "held out", "label": "3"}]
    with pytest.raises(NotFoundError, match="no split 'dev'; it has: test, train"):
        load_rows(PromptDataConfig(path=str(tmp_path), split="dev"))


def test_a_folder_of_files_without_split_names_is_all_train(tmp_path):
    write(tmp_path / "a.jsonl", ROWS[:1])
    write(tmp_path / "b.json", ROWS[1:])
    assert values(PromptDataConfig(path=str(tmp_path))) == ROWS
    with pytest.raises(NotFoundError, match="no split 'test'"):
        load_rows(PromptDataConfig(path=str(tmp_path), split="test"))


def test_a_folder_may_name_its_splits_as_it_likes(tmp_path):
    write(tmp_path / "sft.jsonl", ROWS[:1])
    write(tmp_path / "rl.jsonl", ROWS[1:])
    assert values(PromptDataConfig(path=str(tmp_path), split="rl")) == ROWS[1:]


@pytest.mark.parametrize("kind, suffix", [("json", "jsonl"), ("json", "json"), ("csv", "csv"), ("parquet", "parquet")])
def test_one_kind_of_files_is_taken_from_a_folder(tmp_path, kind, suffix):
    write(tmp_path / f"train.{suffix}", ROWS)
    write(tmp_path / f"test.{suffix}", ROWS)
    other = "csv" if kind != "csv" else "json"
    write(tmp_path / f"train.{other}", ROWS)
    assert values(PromptDataConfig(path=f"{kind}@{tmp_path}")) == ROWS
    assert values(PromptDataConfig(path=f"{kind}@{tmp_path}", split="test")) == ROWS
    with pytest.raises(NotFoundError, match="has no split 'test'; it has: train"):
        load_rows(PromptDataConfig(path=f"{other}@{tmp_path}", split="test"))
    with pytest.raises(NotFoundError, match="there is no folder absent; write a file's path without json@"):
        load_rows(PromptDataConfig(path="json@absent"))


def test_folders_of_save_to_disk_with_and_without_splits(tmp_path):
    from datasets import Dataset, DatasetDict

    one = Dataset.from_list(ROWS)
    one.save_to_disk(str(tmp_path / "plain"))
    DatasetDict({"train": one, "test": Dataset.from_list(ROWS[:1])}).save_to_disk(str(tmp_path / "split"))
    assert values(PromptDataConfig(path=str(tmp_path / "plain"))) == ROWS
    assert values(PromptDataConfig(path=str(tmp_path / "split"), split="test")) == ROWS[:1]
    with pytest.raises(NotFoundError, match="no split 'dev'; it has: train, test"):
        load_rows(PromptDataConfig(path=str(tmp_path / "split"), split="dev"))
    with pytest.raises(NotFoundError, match="without splits"):
        load_rows(PromptDataConfig(path=str(tmp_path / "plain"), split="test"))


def test_broken_rows_are_named_by_file_and_line(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "one"}\n{"prompt": \n')
    with pytest.raises(ConfigError, match=r"rows\.jsonl:2: no valid JSON"):
        load_rows(PromptDataConfig(path=str(path)))
    path.write_text('{"prompt": "one"}\n["two"]\n')
    with pytest.raises(ConfigError, match=r"rows\.jsonl:2 is a list; each row must be an object"):
        load_rows(PromptDataConfig(path=str(path)))
    (tmp_path / "rows.csv").write_text("prompt,label\none,1,extra\n")
    with pytest.raises(ConfigError, match=r"rows\.csv:2 has more fields"):
        load_rows(PromptDataConfig(path=str(tmp_path / "rows.csv")))
    (tmp_path / "rows.parquet").write_bytes(b"no parquet")
    with pytest.raises(ConfigError, match="no valid parquet"):
        load_rows(PromptDataConfig(path=str(tmp_path / "rows.parquet")))
    (tmp_path / "rows.json").write_text('[{"prompt": 1},\n}]')
    with pytest.raises(ConfigError, match=r"rows\.json:2: no valid JSON"):
        load_rows(PromptDataConfig(path=str(tmp_path / "rows.json")))


def test_a_row_of_a_csv_file_is_named_by_the_line_it_begins_in(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text('prompt,label\n"one\nline",1\ntwo,2\nthree,3,4\n')
    with pytest.raises(ConfigError, match=r"rows\.csv:5 has more fields"):
        load_rows(PromptDataConfig(path=str(path)))
    path.write_text(f'prompt,label\n"one\nline",1\ntwo,{"2" * 200_000}\n')
    assert [row.where for row in load_rows(PromptDataConfig(path=str(path)))] == [f"{path}:2", f"{path}:4"]


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.csv"])
def test_bytes_that_are_no_text_are_told(tmp_path, name):
    (tmp_path / name).write_bytes(b'{"prompt": "\xff"}')
    with pytest.raises(ConfigError, match=rf"{name} is no UTF-8 text .*: convert it"):
        load_rows(PromptDataConfig(path=str(tmp_path / name)))


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.csv"])
def test_an_empty_file_has_no_rows(tmp_path, name):
    (tmp_path / name).write_text("")
    assert load_rows(PromptDataConfig(path=str(tmp_path / name))) == []


def test_missing_data_says_what_to_do(tmp_path, monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match=r"set path .* or task"):
        load_rows(PromptDataConfig())
    with pytest.raises(NotFoundError, match=r"there is no file or folder .*absent\.jsonl"):
        load_rows(PromptDataConfig(path=str(tmp_path / "absent.jsonl")))
    with pytest.raises(NotFoundError, match="holds no"):
        load_rows(PromptDataConfig(path=str(tmp_path)))
    with pytest.raises(UnavailableError, match="'nobody/nothing' is neither a file nor a folder here"):
        load_rows(PromptDataConfig(path="nobody/nothing"))
    path = write(tmp_path / "rows.jsonl", ROWS)
    with pytest.raises(ConfigError, match="one file and has no split 'test'"):
        load_rows(PromptDataConfig(path=str(path), split="test"))


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"path": "x", "task": {"name": "chain_sum"}}, "path or task"),
        ({"path": "x", "splits": {"train": 0.9, "test": 0.2}}, "sum to 1"),
        ({"path": "x", "splits": {"train": 1.0, "test": 0.0}}, "above 0"),
        ({"path": "x", "splits": {"a": 0.5}, "split": "b"}, "none of splits: a"),
        ({"task": {"name": "chain_sum"}, "split": "test"}, "set splits"),
        ({"path": "x", "split_key": "a"}, "nothing without splits"),
        ({"path": "x", "include": "("}, "no regular expression"),
        ({"path": "x", "input_template": "no hole"}, "one {}"),
        ({"path": "x", "system_prompt": "Be kind."}, "apply_chat_template"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        PromptDataConfig(**settings)
