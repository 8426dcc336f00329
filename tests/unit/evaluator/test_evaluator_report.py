"""The files of the report: workbook without formulas or lost text, chart in both languages, results and summary."""

from __future__ import annotations

import asyncio
import io
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import openpyxl
import pytest
from matplotlib import font_manager
from rich.console import Console

from rlctl.core.errors import FailedPreconditionError
from rlctl.evaluator import chart
from rlctl.evaluator.config import EvaluatorConfig, JudgeConfig
from rlctl.evaluator.evaluate import Evaluation, evaluate
from rlctl.evaluator.files import CHART, RESULTS, SUMMARY, WORKBOOK
from rlctl.evaluator.labels import LABELS
from rlctl.evaluator.report import write_report
from rlctl.evaluator.sheets import MAX_CELL, Workbook, clean, sheet_name
from rlctl.evaluator.standin import StandIn
from rlctl.evaluator.terminal import show
from support.pairs import write_pairs

NASTY = "=1+1\x00\x0b\x1f\ud800\ufffe tab\t end _x0041_"


def _evaluated(tmp_path: Path, **more: Any) -> Evaluation:
    outputs, gold = write_pairs(tmp_path, 12)
    write_pairs(tmp_path, 6, seed=1, name="second [set]*")
    with (outputs / "set.jsonl").open("a", encoding="utf-8") as file:
        for output in (NASTY, "+1", "-2", "@SUM(A1)", "\t=3", "x" * 40_000, ""):
            row = {"prompt": '=HYPERLINK("http://x")', "output": output, "answer_a": "=2", "answer_b": "3"}
            file.write(json.dumps(row) + "\n")
        file.write("broken\n")

    async def run() -> Evaluation:
        async with StandIn(["prose"] * 3) as server:
            settings = {
                "outputs": outputs, "gold": str(gold), "output_dir": tmp_path / "report", "concurrency": 1,
                "judges": [JudgeConfig(preset="local", model="m", base_url=server.base_url)], "bootstrap": 200,
            }  # fmt: skip
            return await evaluate(EvaluatorConfig(**{**settings, **more}))

    return asyncio.run(run())


def test_the_workbook_is_whole_and_holds_no_formula(tmp_path: Path) -> None:
    write_report(_evaluated(tmp_path))
    path = tmp_path / "report" / WORKBOOK
    with zipfile.ZipFile(path) as archive:
        sheets = [name for name in archive.namelist() if name.startswith("xl/worksheets/sheet")]
        assert not any(b"<f>" in archive.read(name) or b"<f " in archive.read(name) for name in sheets)
    book = openpyxl.load_workbook(path)
    assert book.sheetnames == [
        "Summary",
        "second _set__",
        "set",
        "Unscored",
        "Records that differ",
        "Rows that could not be used",
    ]
    assert all(cell.data_type != "f" for sheet in book for row in sheet.iter_rows() for cell in row)
    rows = list(book["set"].iter_rows(values_only=True))
    header, outputs = rows[0], [row[-1] for row in rows[1:]]
    assert header[0] == "Id"
    assert len(outputs) == 19
    # The code for an underscore: spreadsheet programs show `_x0041_`, not the letter A.
    assert "=1+1 tab\t end _x005F_x0041_" in outputs
    assert {"+1", "-2", "@SUM(A1)"} <= set(outputs)
    cut = next(text for text in outputs if text and text.startswith("xxx"))
    assert len(cut) == MAX_CELL
    assert cut.endswith("…[cut]")
    unscored = list(book["Unscored"].iter_rows(values_only=True))
    assert any("3 replies" in str(row[2]) for row in unscored)
    bad = list(book["Rows that could not be used"].iter_rows(values_only=True))
    assert [(Path(str(row[0])).name, row[1]) for row in bad[1:]] == [("set.jsonl", 20)]


def test_results_and_summary_agree(tmp_path: Path) -> None:
    evaluation = _evaluated(tmp_path)
    write_report(evaluation)
    lines = (tmp_path / "report" / RESULTS).read_text(encoding="utf-8").split("\n")
    rows = [json.loads(line) for line in lines if line]
    summary = json.loads((tmp_path / "report" / SUMMARY).read_text(encoding="utf-8"))
    for name in ("set", "second [set]*"):
        entry = summary["data_sets"][name]["measures"]["both_right"]
        mine = [row["measures"]["both_right"] for row in rows if row["data_set"] == name]
        assert (entry["yes"], entry["unscored"]) == (mine.count(True), mine.count(None))
    assert summary["data_sets"]["(all)"]["records"] == len(rows) == 25
    assert [row["line"] for row in summary["bad_rows"]] == [20]
    assert rows[6]["verdicts"]["local"]["values"] is None or rows[6]["verdicts"]["local"]["values"]["reason"]


def test_nothing_is_left_half_written(tmp_path: Path) -> None:
    write_report(_evaluated(tmp_path))
    names = {path.name for path in (tmp_path / "report").iterdir()}
    assert names == {RESULTS, CHART, WORKBOOK, SUMMARY, "journal.jsonl"}


def test_sheet_names_are_legal_and_unique() -> None:
    taken: set[str] = set()
    names = [sheet_name(name, taken) for name in ("a/b:c", "A_B_C", "x" * 40, "X" * 40, "", "'quoted'", "history")]
    assert names == ["a_b_c", "A_B_C (2)", "x" * 31, "X" * 27 + " (2)", "data", "_quoted_", "history_"]
    assert len(sheet_name("🎉" * 40, taken).encode("utf-16-le")) // 2 <= 31
    assert all(len(name) <= 31 and not re.search(r"[\[\]:*?/\\']", name) for name in names)


def test_text_keeps_what_a_cell_can_hold() -> None:
    assert clean("a\r\nb\rc\td", "en") == "a\nb\nc\td"
    assert clean("\x00\x08\x0c\x1f\ud800\udfff\uffff", "en") == ""
    assert clean("你好 🎉", "zh") == "你好 🎉"
    assert clean("x" * MAX_CELL, "en") == "x" * MAX_CELL
    assert clean("x" * (MAX_CELL + 1), "zh").endswith("…[已截断]")
    # The format counts an emoji as two.
    assert clean("🎉" * (MAX_CELL // 2), "en") == "🎉" * (MAX_CELL // 2)
    cut = clean("x" + "🎉" * MAX_CELL, "en")
    assert cut.endswith("🎉…[cut]")
    assert MAX_CELL - 1 <= len(cut.encode("utf-16-le")) // 2 <= MAX_CELL


def test_rows_over_the_limit_go_to_a_further_sheet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlctl.evaluator.sheets.MAX_ROWS", 3)
    with Workbook(tmp_path / "book.xlsx", "en") as book:
        book.sheet("many", (10,), ["n"], ([number] for number in range(7)))
        book.sheet("none", (10,), ["n"], iter(()))
    read = openpyxl.load_workbook(tmp_path / "book.xlsx")
    assert read.sheetnames == ["many", "many (2)", "many (3)", "none"]
    assert [row[0] for row in read["many (3)"].iter_rows(values_only=True)] == ["n", 6]
    assert [row[0] for row in read["none"].iter_rows(values_only=True)] == ["n"]


def _drawn_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evaluation: Evaluation, language: Any
) -> tuple[str, set[str]]:
    """The language drawn and every text in the figure."""
    from matplotlib.figure import Figure

    texts: set[str] = set()
    save = Figure.savefig

    def spy(self: Figure, path: Path) -> None:
        save(self, path)
        texts.update(text.get_text() for text in self.findobj(lambda item: hasattr(item, "get_text")))

    monkeypatch.setattr(Figure, "savefig", spy)
    drawn = chart.draw(tmp_path / "chart.png", evaluation.summary, evaluation.config.chart, language)
    assert (tmp_path / "chart.png").read_bytes()[:4] == b"\x89PNG"
    return drawn, texts


@pytest.mark.filterwarnings("error:Glyph")
def test_the_chart_reads_in_the_language_that_the_fonts_allow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluation = _evaluated(tmp_path)
    evaluation.summary["data_sets"]["中文数据"] = evaluation.summary["data_sets"].pop("set")
    drawn, texts = _drawn_texts(tmp_path, monkeypatch, evaluation, "zh")
    words = {LABELS[name][0 if drawn == "zh" else 1] for name in evaluation.config.chart}
    assert words <= texts
    assert drawn == ("zh" if chart.cjk_font() else "en")


@pytest.mark.filterwarnings("error:Glyph")
def test_without_a_chinese_font_the_chart_is_english_and_has_no_boxes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluation = _evaluated(tmp_path)
    evaluation.summary["data_sets"]["中文"] = evaluation.summary["data_sets"].pop("set")
    dejavu = [font for font in font_manager.fontManager.ttflist if font.name.startswith("DejaVu")]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", dejavu)
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: [])
    drawn, texts = _drawn_texts(tmp_path, monkeypatch, evaluation, "zh")
    assert drawn == "en"
    assert LABELS["switches"][1] in texts
    assert not any(ord(char) >= 0x2E80 for text in texts for char in text)


@pytest.mark.filterwarnings("error:Glyph")
def test_names_that_no_font_has_are_no_boxes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluation = _evaluated(tmp_path)
    evaluation.summary["data_sets"]["हिन्दी\n\x1b[31m $x^2$ ok"] = evaluation.summary["data_sets"].pop("set")
    _, texts = _drawn_texts(tmp_path, monkeypatch, evaluation, "en")
    assert any(text.startswith("??????") and r"\$x^2\$ ok" in text for text in texts)


def test_very_many_data_sets_are_drawn_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluation = _evaluated(tmp_path)
    sets = evaluation.summary["data_sets"]
    sets.update({f"set {number}": sets["set"] for number in range(600)})
    _, texts = _drawn_texts(tmp_path, monkeypatch, evaluation, "en")
    assert [text for text in texts if "(n = " in text] == ["All  (n = 25)"]


def test_the_terminal_shows_no_command_of_a_file_name(tmp_path: Path) -> None:
    evaluation = _evaluated(tmp_path)
    sets = evaluation.summary["data_sets"]
    sets["\x1b[31m\x07[bold]red\ud800"] = sets.pop("set")
    evaluation.summary["bad_rows"][0]["file"] = "\x1b]0;title\x07.jsonl"
    for language in ("zh", "en"):
        console = Console(file=io.StringIO(), force_terminal=False, width=120)
        show(console, evaluation.summary, language)
        text = console.file.getvalue()  # type: ignore[attr-defined]
        text.encode()
        assert "?[31m?[bold]red?" in text
        assert "?]0;title?.jsonl:" in text
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", text)


def test_the_report_is_chinese_throughout(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=200)
    evaluation = _evaluated(tmp_path)
    show(console, evaluation.summary, "zh")
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert not re.search("calls|tokens|cached|retries|Unscored|Records", text)
    # The ratio counts as unscored what has no verdict: one record here, in the set and in all.
    assert len(re.findall(r"P\(均正确\|切换\) / P\(均正确\)[^\n]*│ +1 │\n", text)) == 2


def test_a_report_that_cannot_be_written_says_so_and_leaves_the_old(tmp_path: Path) -> None:
    evaluation = _evaluated(tmp_path)
    write_report(evaluation)
    folder = tmp_path / "report"
    old = (folder / WORKBOOK).read_bytes()
    (folder / CHART).unlink()
    (folder / CHART).mkdir()
    with pytest.raises(FailedPreconditionError, match="give the same command again"):
        write_report(evaluation)
    assert (folder / WORKBOOK).read_bytes() == old
    assert [path.name for path in folder.iterdir() if ".part" in path.name] == []


def test_a_chart_of_nothing_scored_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluation = _evaluated(tmp_path, judges=[JudgeConfig(preset="rules")])
    _, texts = _drawn_texts(tmp_path, monkeypatch, evaluation, "en")
    assert "no data" in texts


def test_every_label_has_both_languages() -> None:
    assert all(chinese and english for chinese, english in LABELS.values())
