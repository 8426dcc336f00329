"""What a person sees while a run goes on."""

from __future__ import annotations

import io
import json
from pathlib import Path

from rich.console import Console

from rlctl.bus.registry import Instance
from rlctl.launch.monitor import Pace, Rows, Snapshot
from rlctl.launch.report import print_summary
from rlctl.launch.spec import Plan, ProcessSpec
from rlctl.launch.view import View

ROW = {
    "step": 0, "reward/mean": 0.5, "kl/mean": 0.01, "length/mean": 4.25, "tokens_per_second": 812.4,
    "time/step": 1.5, "time/generate": 0.5, "time/train": 1.0,
}  # fmt: skip
PLAN = Plan("trial", [ProcessSpec(f"{name}-0", name, "m", {}) for name in ("generation", "trainer")])  # type: ignore[arg-type]


def append(path: Path, row: dict[str, object]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


def snapshot(state: str = "running") -> Snapshot:
    instance = Instance("generation", "g", "127.0.0.1:1", 1, serving=True)
    return Snapshot(
        state=state, ledger={"issued": 64, "trained": 32, "dropped": 0, "pending": 32}, instances=[instance]
    )


def test_a_step_is_one_plain_line_where_there_is_no_terminal(tmp_path: Path) -> None:
    out = io.StringIO()
    view = View(Console(file=out, width=200), PLAN, tmp_path, 10)
    with view:
        view.update(snapshot(), {})
        append(tmp_path / "metrics.jsonl", ROW)
        append(tmp_path / "evaluations.jsonl", {"step": 0, "accuracy": 0.59, "n": 400})
        view.update(snapshot(), {})
        view.update(snapshot(), {})
    text = out.getvalue()
    line = "step 1/10  reward 0.500  KL 0.0100  length 4.2  tokens/s 812  1.50 s (generate 0.50 train 1.00)  left --:--"
    assert text.count(line) == 1
    assert "accuracy 0.590 of 400 held-out prompts after 0 steps" in text


def test_the_table_has_state_ledger_processes_and_events(tmp_path: Path) -> None:
    out = io.StringIO()
    console = Console(file=out, width=120, force_terminal=True, color_system=None)
    view = View(console, PLAN, tmp_path, 10)
    append(tmp_path / "metrics.jsonl", ROW)
    with view:
        view.restarts = 1
        view.say("generation-0 ended by SIGKILL: restarting it")
        view.update(snapshot("evaluating"), {"generation-0": True, "trainer-0": False})
        view._live.refresh()  # type: ignore[union-attr]
    text = out.getvalue()
    for shown in (
        "evaluating", "1 / 10", "reward 0.500", "issued 64  trained 32  dropped 0  pending 32", "generation 1/1",
        "trainer 0/1", "restarts 1", "generation-0 ended by SIGKILL",
    ):  # fmt: skip
        assert shown in text


def test_rows_follow_a_file_that_grows_and_one_that_is_rewritten(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    rows = Rows(path)
    assert rows.refresh() == []
    append(path, {"step": 0})
    with path.open("a") as file:
        file.write('{"step": 1')
    assert rows.refresh() == [{"step": 0}]
    with path.open("a") as file:
        file.write("}\n")
    assert rows.refresh() == [{"step": 1}]
    aside = tmp_path / "aside"
    append(aside, {"step": 0})
    aside.rename(path)
    assert rows.refresh() == [{"step": 0}]
    assert rows.rows == [{"step": 0}]


def test_the_time_left_is_that_of_the_last_steps() -> None:
    pace = Pace()
    assert pace.left(0, 10) is None
    for second, step in enumerate((0, 1, 2, 3)):
        pace._marks.append((float(second * 2), step))
    assert pace.left(3, 10) == 14.0


def test_the_summary_says_how_reward_and_accuracy_moved_and_where_the_model_is(tmp_path: Path) -> None:
    out = io.StringIO()
    summary = {
        "status": "done", "steps": 150, "total_steps": 150, "seconds": 214.2,
        "reward": {"first": 0.51, "last": 0.93},
        "eval": {"before": {"step": 0, "accuracy": 0.575}, "after": {"step": 150, "accuracy": 0.9625}, "n": 400},
        "ledger": {
            "issued": 4800, "trained": 4799, "dropped": 1, "pending": 0, "dropped_by_reason": {"REWARD_FAILED": 1},
        },
        "time": {"generate": 50.0, "train": 150.0}, "model": "/runs/trial/model",
    }  # fmt: skip
    print_summary(Console(file=out, width=120), "trial", tmp_path, summary, restarts=2)
    text = out.getvalue()
    for shown in (
        "150 of 150 in 214 s", "0.510 (first step) -> 0.930 (last step)",
        "0.575 after 0 steps -> 0.963 after 150 (400 prompts)", "issued 4800  trained 4799  dropped 1  pending 0",
        "REWARD_FAILED 1",
        "generate 25%  train 75%", "/runs/trial/model", "rlctl chat trial",
    ):  # fmt: skip
        assert shown in text
