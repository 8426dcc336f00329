"""`rlctl eval` as a person uses it: demo, dry run, stop and resume, secrets, bad input."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import openpyxl
import pytest

from rlctl.evaluator.standin import StandIn
from support.pairs import write_pairs

REPO = Path(__file__).resolve().parents[2]
ROOTS = ("protos", "services", "trainer", "evaluator", "cli")
KEY = "sk-secret-0123456789abcdef"


def _environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    return {**kept, "PYTHONPATH": os.pathsep.join(str(REPO / root) for root in ROOTS), "COLUMNS": "140", **more}


def _eval(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rlctl.cli.main", "eval", *arguments], cwd=cwd, env=_environment(**environment),
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


async def _eval_beside(*arguments: str, cwd: Path, **environment: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "rlctl.cli.main", "eval", *arguments, cwd=cwd, env=_environment(**environment),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    # The key is in the environment, never in what every user of the machine can list.
    assert KEY.encode() not in await asyncio.to_thread(Path(f"/proc/{process.pid}/cmdline").read_bytes)
    out, error = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode is not None
    return process.returncode, out.decode(), error.decode()


@pytest.mark.parametrize("language, words", [("zh", "能在A、B间切换"), ("en", "Switches between A and B")])
def test_the_demo_works_offline(tmp_path: Path, language: str, words: str) -> None:
    done = _eval("--demo", "--language", language, "--output", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert words in done.stdout
    summary = json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))
    entry = summary["data_sets"]["(all)"]
    assert entry["records"] == 50
    assert entry["gold"] == {"explicit": 1, "gold_ambiguous": 1, "gold_unmatched": 1, "ok": 47}
    # One record's judge never gives JSON, two have no gold; the rest is scored.
    assert (entry["measures"]["switches"]["n"], entry["measures"]["both_right"]["n"]) == (49, 47)
    assert (
        entry["measures"]["both_right_given_switch"]["value"] > entry["measures"]["both_right_given_no_switch"]["value"]
    )
    assert entry["judge_and_rules"]["answers"]["kappa"] > 0.85
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "summary.json", "evaluation_results.jsonl", "evaluation_results.png", "evaluation_results.xlsx",
        "journal.jsonl",
    }  # fmt: skip
    book = openpyxl.load_workbook(tmp_path / "out" / "evaluation_results.xlsx")
    assert book.sheetnames[1:3] == ["chinese", "english"]


def test_a_dry_run_asks_nothing(tmp_path: Path) -> None:
    write_pairs(tmp_path, 7)
    done = _eval("--gold", "gold.jsonl", "--dry-run", "--swap-check", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("7 records, 14 calls,")
    assert "at most $0.0" in done.stdout
    assert not (tmp_path / "evaluation").exists()


def test_a_dry_run_of_what_asks_no_judge_or_has_no_outputs_yet(tmp_path: Path) -> None:
    write_pairs(tmp_path, 7)
    done = _eval("--gold", "gold.jsonl", "--mode", "single", "--dry-run", cwd=tmp_path)
    assert done.stdout.startswith("7 records, 0 calls,")
    # 40 gold questions make 20 pairs.
    done = _eval("--gold", "gold.jsonl", "--model", "x", "--samples", "3", "--dry-run", cwd=tmp_path)
    assert done.stdout.startswith("60 records, 60 calls,")
    assert _eval("--demo", "--dry-run", cwd=tmp_path).stdout.startswith("50 records, 50 calls,")
    assert not (tmp_path / "evaluation").exists()


def test_settings_files_and_names_from_any_system(tmp_path: Path) -> None:
    write_pairs(tmp_path, 2)
    rules = ("--gold", "gold.jsonl", "--judge", "rules")
    (tmp_path / "own.toml").write_bytes('\ufefflanguage = "zh"\r\n'.encode())
    odd = "o\x7f\x1b[31m\"'\\ 出"
    done = _eval(*rules, "--config", "own.toml", "--output", odd, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "指标" in done.stdout
    assert "\x1b" not in done.stdout
    assert (tmp_path / odd / "summary.json").exists()
    (tmp_path / "own.toml").write_bytes('language = "zh"'.encode("utf-16"))
    done = _eval(*rules, "--config", "own.toml", cwd=tmp_path)
    assert (done.returncode, "own.toml is not UTF-8" in done.stderr) == (2, True)


def test_any_terminal_and_any_proxy_will_do(tmp_path: Path) -> None:
    proxies = dict.fromkeys(("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"), "socks5://127.0.0.1:9")
    done = _eval("--demo", "--language", "zh", cwd=tmp_path, PYTHONIOENCODING="ascii", **proxies)
    assert done.returncode == 0, done.stderr
    assert "35/49" in done.stdout
    assert done.stdout.isascii()


@pytest.mark.parametrize("arguments, words", [
    (("--judge", "deepsek"), "judges.0.preset"),
    (("--outputs", "nowhere", "--judge", "rules"), "there is no folder nowhere"),
    ((), "set DEEPSEEK_API_KEY"),
    (("--judge", "rules", "--gold", "none.jsonl"), "there is no gold file none.jsonl"),
    (("--set", "outptus=x"), "Did you mean 'outputs'"),
    (("--chart", "switchs"), "chart.0"),
    (("--judge-model", "a", "--judge-model", "b"), "2 --judge-model for 1 --judge"),
    (("--price", "cheap"), "write HIT,MISS,OUTPUT"),
    (("--judge", "rules", "--judge", "local"), "stands alone"),
    (("--base-url", "api.deepseek.com"), "must begin with http:// or https://"),
    (("--price", "inf,1,1"), "judges.0.price.input_hit"),
    (("--max-cost", "nan"), "greater than"),
    (("--concurrency", "-1"), "greater than or equal to 1"),
    (("--set", "seed=-1"), "seed: Input should be greater than or equal to 0"),
    (("--judge", "rules", "--output", "gold.jsonl"), "cannot write gold.jsonl/journal.jsonl"),
    (("--prompt-template", "outputs"), "cannot read the template outputs: Is a directory"),
])  # fmt: skip
def test_wrong_settings_say_the_mend(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    write_pairs(tmp_path, 1)
    gold = () if "--gold" in arguments else ("--gold", "gold.jsonl")
    done = _eval(*arguments, *gold, cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_402_ends_with_words_and_the_same_command_goes_on(tmp_path: Path) -> None:
    write_pairs(tmp_path, 12)

    async def run() -> None:
        async with StandIn(["ok"] * 5 + ["402"] * 20, token=KEY) as server:
            arguments = (
                "--gold", "gold.jsonl", "--judge", "deepseek", "--base-url", server.base_url, "--concurrency", "2",
            )  # fmt: skip
            code, out, _ = await _eval_beside(*arguments, cwd=tmp_path, DEEPSEEK_API_KEY=KEY)
            assert code == 1
            assert "give the same command again" in " ".join(out.split())
            summary = json.loads((tmp_path / "evaluation" / "summary.json").read_text())
            assert summary["state"] == "stopped"
            assert summary["data_sets"]["set"]["measures"]["switches"]["n"] == 5
            server.faults.clear()
            before = sum(server.calls.values())
            code, out, _ = await _eval_beside(*arguments, cwd=tmp_path, DEEPSEEK_API_KEY=KEY)
            assert code == 0
            assert sum(server.calls.values()) - before == 7

    asyncio.run(run())


def test_no_key_is_written_anywhere(tmp_path: Path) -> None:
    write_pairs(tmp_path, 6)

    async def run() -> list[str]:
        texts = []
        async with StandIn(["500", "error-200", "400", "reset"], token=KEY) as server:
            arguments = ("--gold", "gold.jsonl", "--base-url", server.base_url, "--output", "out")
            texts += (await _eval_beside(*arguments, cwd=tmp_path, DEEPSEEK_API_KEY=KEY, OPENAI_LOG="debug"))[1:]
        async with StandIn(token="another key") as server:
            arguments = ("--gold", "gold.jsonl", "--base-url", server.base_url, "--output", "refused")
            code, *refused = await _eval_beside(*arguments, cwd=tmp_path, DEEPSEEK_API_KEY=KEY)
            assert code == 1
            assert "[key]" in "".join(refused)
            texts += refused
        return texts

    texts = asyncio.run(run())
    assert not any(KEY in text for text in texts)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) >= 8
    assert [path.name for path in files if KEY.encode() in path.read_bytes()] == []
    for workbook in tmp_path.rglob("*.xlsx"):
        cells = (
            cell
            for sheet in openpyxl.load_workbook(workbook)
            for row in sheet.iter_rows(values_only=True)
            for cell in row
        )
        assert not any(KEY in str(cell) for cell in cells)


#: A shell that starts the tests in the background has interrupts ignored, also in what they start.
INTERRUPTIBLE = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("rlctl.cli.main", run_name="__main__", alter_sys=True)
"""


def test_an_interrupt_keeps_the_verdicts(tmp_path: Path) -> None:
    write_pairs(tmp_path, 400)

    async def run() -> tuple[int, str, int]:
        async with StandIn(latency_s=0.2) as server:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", INTERRUPTIBLE, "eval", "--judge", "local", "--judge-model", "m", "--base-url",
                server.base_url, "--gold", "gold.jsonl", "--concurrency", "4", cwd=tmp_path, env=_environment(),
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            )  # fmt: skip
            async with asyncio.timeout(60):
                while sum(server.calls.values()) < 10:
                    await asyncio.sleep(0.02)
            process.send_signal(signal.SIGINT)
            _, error = await asyncio.wait_for(process.communicate(), 30)
            assert process.returncode is not None
            return process.returncode, error.decode(), sum(server.calls.values())

    code, error, calls = asyncio.run(run())
    assert code == 130
    assert "Give the same command to go on" in error
    journal = (tmp_path / "evaluation" / "journal.jsonl").read_text()
    assert 6 <= journal.count('{"reply"') <= calls < 100
