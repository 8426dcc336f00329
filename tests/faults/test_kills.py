"""One run in which every process is killed in turn, and the whole tree at last; then its journal is replayed.

Nothing is lost, nothing is trained twice, nothing that was stored is generated again, and the final weights are, bit
for bit, those that the journal alone gives.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import psutil
import pytest
from safetensors.torch import load_file

from rlctl.bus.ids import group_key
from rlctl.trainer.journal import Journal
from rlctl.v1.rollout_pb2 import RolloutGroup
from support.launched import LaunchedRun, tiny_recipe

#: The fixture holds the whole run: nine kills, and what each costs to mend.
pytestmark = pytest.mark.timeout(1500)

#: Steps between one kill and the next: the run must have gone on in between.
GAP = 3
#: From a kill to the next trained step: a restart, with vLLM's start in the worst case, and a replay.
RECOVERY_S = 240.0
GROUP = r"run/\d+/\d+/\d+"


def _front(run: LaunchedRun) -> psutil.Process:
    return run.service("generation-0", "rlctl.generation")


def _engine(run: LaunchedRun) -> psutil.Process:
    """What vLLM's front started: it holds the model."""
    children = _front(run).children(recursive=True)
    return max(children, key=lambda child: child.memory_info().rss)


VICTIMS = {
    "rollout worker": lambda run: run.service("rollout-0", "rlctl.rollout"),
    "generation front": _front,
    "generation engine": _engine,
    "reward": lambda run: run.service("reward-0", "rlctl.reward"),
    "reference": lambda run: run.service("reference-0", "rlctl.reference"),
    "critic": lambda run: run.service("critic-0", "rlctl.critic"),
    "nats-server": lambda run: next(
        process for process in map(psutil.Process, run.pids("nats-0")) if process.name() == "nats-server"
    ),
    "trainer rank": lambda run: run.service("trainer-0", "rlctl.trainer"),
}
STEPS = GAP * (len(VICTIMS) + 2)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LaunchedRun]:
    """The run, at its end: done in spite of all kills."""
    recipe = tiny_recipe(tmp_path_factory.mktemp("kills"), train__steps=STEPS, cluster__restarts=50)
    run = LaunchedRun(recipe)
    try:
        run.start()
        run.until_step(1)
        for name, victim in VICTIMS.items():
            seen = run.step()
            process = victim(run)
            process.kill()
            began = time.monotonic()
            # A killed learner goes back to the last commit: the steps since then are trained, and written, again.
            run.until(lambda process=process: not process.is_running(), 10, f"end of the {name}")
            run.until_step(min(seen + GAP, STEPS - 1), RECOVERY_S)
            print(f"{name}: killed at step {seen}, {GAP} steps later after {time.monotonic() - began:.1f} s")
        os.kill(run.process.pid, signal.SIGKILL)
        run.process.wait(10)
        deadline = time.monotonic() + 20
        while run.left_over() and time.monotonic() < deadline:
            time.sleep(0.2)
        assert run.left_over() == []
        run.start()
        assert run.wait() == 0, run.tail()
        yield run
    finally:
        run.end()


def test_it_came_to_its_end_and_left_no_process(run: LaunchedRun) -> None:
    summary = run.folder.summary()
    assert summary["status"] == "done"
    assert [row["step"] for row in run.rows()] == list(range(STEPS))
    assert run.left_over() == []


def test_the_ledger_balances_at_every_step(run: LaunchedRun) -> None:
    for ledger in [
        run.folder.summary()["ledger"],
        *({name: row[f"ledger/{name}"] for name in ("issued", "trained", "dropped", "pending")} for row in run.rows()),
    ]:
        assert ledger["issued"] == ledger["trained"] + ledger["dropped"] + ledger["pending"]
    assert run.folder.summary()["ledger"]["pending"] == 0


def test_no_group_is_trained_twice(run: LaunchedRun) -> None:
    journal = Journal(run.path / "journal")
    trained = Counter()
    for step in journal.steps():
        settled = journal.read(step).settled
        assert settled is not None and settled.step == step
        trained.update(group_key(RolloutGroup.FromString(data).task.id) for data in settled.groups)
    assert set(trained.values()) == {1}
    assert len(trained) == run.folder.summary()["ledger"]["trained"]
    # Every prompt once an epoch: an attempt that was issued again stands in the place of the earlier one.
    places = Counter(tuple(key.split("/")[1:3]) for key in trained)
    assert set(places.values()) == {1}


def test_what_was_stored_is_not_generated_again(run: LaunchedRun) -> None:
    stored: dict[str, float] = {}
    for line in run.log("rollout-0").splitlines():
        match = re.match(rf"(\S+)Z DEBUG \S+ prompt group ({GROUP}) is stored$", line)
        if match:
            stored.setdefault(match[2], datetime.fromisoformat(match[1]).timestamp())
    generated = defaultdict(list)
    for line in run.log("generation-0").splitlines():
        match = re.match(rf"(\S+)Z DEBUG \S+ generating for request ({GROUP})$", line)
        if match:
            generated[match[2]].append(datetime.fromisoformat(match[1]).timestamp())
    trained = run.folder.summary()["ledger"]["trained"]
    assert len(stored) >= trained
    assert len(generated) >= trained
    again = {key: times for key, times in generated.items() if key in stored and max(times) > stored[key]}
    assert again == {}


def test_the_journal_alone_gives_the_same_weights(run: LaunchedRun) -> None:
    command = [sys.executable, "-m", "rlctl.cli.main", "replay", "run", "--runs-dir", str(run.path.parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RECOVERY_S)
    assert done.returncode == 0, done.stdout + done.stderr + run.log("replay-trainer-0")[-3000:]
    kept, replayed = (load_file(folder / "model" / "model.safetensors") for folder in (run.path, run.path / "replay"))
    assert kept.keys() == replayed.keys()
    assert [name for name in kept if not kept[name].equal(replayed[name])] == []
    before = load_file(Path(run.folder.recipe().model) / "model.safetensors")
    assert all(not kept[name].equal(before[name]) for name in kept)
    rows = [json.loads(line) for line in (run.path / "replay" / "metrics.jsonl").read_text().splitlines()]
    assert max(row["kl/mean"] for row in rows) > 0
