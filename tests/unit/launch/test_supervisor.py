"""The supervisor over real Ray: small programs stand where services would."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlctl.launch import sweep
from rlctl.launch.host import Host, watch
from rlctl.launch.recipe import ClusterSection
from rlctl.launch.restart import RestartPolicy
from rlctl.launch.spec import Plan, ProcessSpec
from rlctl.launch.supervisor import Restart, RunFailedError, Supervisor

PROGRAMS = {
    # Writes its id, leaves a child in a session of its own, then sleeps.
    "sleeper": """
        import json, os, subprocess, sys, time
        config = json.load(open(sys.argv[2]))
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        with open(config["out"], "a") as out:
            out.write(f"{os.getpid()} {child.pid}\\n")
        time.sleep(600)
    """,
    "failing": """
        print("loading the model", flush=True)
        raise SystemExit("2026-01-01T00:00:00.000Z ERROR reward: no such model: ghost")
    """,
    # Rank 0 ends with 0 at SIGTERM, as a trainer that has committed.
    "trainer": """
        import json, os, signal, sys, time
        config = json.load(open(sys.argv[2]))
        keys = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", "RAY_JOB_ID")
        keys += ("CUDA_VISIBLE_DEVICES",)
        with open(config["out"], "a") as out:
            out.write(json.dumps({key: os.environ.get(key) for key in keys} | {"pid": os.getpid()}) + "\\n")
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        time.sleep(600)
    """,
}


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import textwrap

    folder = tmp_path_factory.mktemp("programs")
    for name, text in PROGRAMS.items():
        (folder / f"prog_{name}.py").write_text(textwrap.dedent(text))
    return folder


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    launch_id = secrets.token_hex(8)
    release = watch(launch_id)
    # Ray counts four GPUs that are not there: enough to see who gets which.
    mine = {sweep.LAUNCH: launch_id, "RAY_OVERRIDE_RESOURCES": json.dumps({"GPU": 4})}
    os.environ.update(mine)
    host = Host(tmp_path_factory.mktemp("run"), ClusterSection(), launch_id)
    host.open()
    yield host
    host.close()
    release()
    for name in mine:
        del os.environ[name]
    assert sweep.marked(sweep.LAUNCH, launch_id) == []


def spec(programs: Path, program: str, name: str, out: Path, **more: object) -> ProcessSpec:
    service = name.rsplit("-", 1)[0]
    return ProcessSpec(
        name,
        service,  # type: ignore[arg-type]
        f"prog_{program}",
        {"out": str(out)},
        env={"PYTHONPATH": str(programs), "OMP_NUM_THREADS": "3"},
        **more,  # type: ignore[arg-type]
    )


def supervisor(host: Host, processes: list[ProcessSpec], restarts: int = 5) -> tuple[Supervisor, list[Restart]]:
    heard: list[Restart] = []
    policy = RestartPolicy(restarts, 600.0, time.monotonic)
    return Supervisor(Plan("test", processes), host, policy, heard.append), heard


def lines(path: Path, count: int, supervisor: Supervisor | None = None, timeout_s: float = 60.0) -> list[str]:
    """Waits for so many lines in a file."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = path.read_text().splitlines() if path.exists() else []
        if len(found) >= count:
            return found
        if supervisor is None:
            time.sleep(0.1)
        else:
            supervisor.tick(0.1)
    raise AssertionError(f"{path} has {found}")


def gone(pid: int) -> bool:
    """Killed; on a busy machine it may take a while to die, and no longer has its environment meanwhile."""
    deadline = time.monotonic() + 10.0
    while alive(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def test_a_killed_service_is_restarted_alone_and_its_old_children_are_gone(
    host: Host, programs: Path, tmp_path: Path
) -> None:
    first, other = tmp_path / "reward", tmp_path / "rollout"
    boss, heard = supervisor(
        host, [spec(programs, "sleeper", "reward-0", first), spec(programs, "sleeper", "rollout-0", other)]
    )
    boss.start()
    pid, child = map(int, lines(first, 1, boss)[0].split())
    bystander = lines(other, 1, boss)
    os.kill(pid, signal.SIGKILL)
    again, _ = map(int, lines(first, 2, boss)[1].split())
    assert again != pid
    assert gone(child)
    assert lines(other, 1) == bystander
    assert [(one.name, one.why, one.with_others) for one in heard] == [("reward-0", "ended by SIGKILL", [])]
    boss.kill()
    assert gone(again)


def test_a_killed_guard_is_noticed_and_nothing_below_it_survives(host: Host, programs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    boss, heard = supervisor(host, [spec(programs, "sleeper", "reference-0", out)])
    boss.start()
    pid, child = map(int, lines(out, 1, boss)[0].split())
    guard = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(guard, signal.SIGKILL)
    lines(out, 2, boss)
    assert gone(pid)
    assert gone(child)
    assert [one.name for one in heard] == ["reference-0"]
    boss.kill()


def test_a_killed_ray_actor_costs_a_restart_of_its_process(host: Host, programs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    boss, heard = supervisor(host, [spec(programs, "sleeper", "generation-7", out)])
    boss.start()
    pid, child = map(int, lines(out, 1, boss)[0].split())
    guard = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    actor = int(Path(f"/proc/{guard}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(actor, signal.SIGKILL)
    lines(out, 2, boss)
    assert gone(pid)
    assert gone(child)
    assert heard[0].why == "was lost with its Ray actor"
    boss.kill()


def test_the_critic_takes_every_trainer_rank_with_it(host: Host, programs: Path, tmp_path: Path) -> None:
    critic, trainer = tmp_path / "critic", tmp_path / "trainer"
    processes = [spec(programs, "sleeper", "critic-0", critic, group="learners")]
    processes += [
        spec(programs, "trainer", f"trainer-{rank}", trainer, group="learners", rank=rank, ranks=2) for rank in (0, 1)
    ]
    boss, heard = supervisor(host, processes)
    boss.start()
    pid, _ = map(int, lines(critic, 1, boss)[0].split())
    before = [json.loads(line) for line in lines(trainer, 2, boss)]
    assert sorted(rank["RANK"] for rank in before) == ["0", "1"]
    assert {rank["WORLD_SIZE"] for rank in before} == {"2"}
    assert {rank["MASTER_ADDR"] for rank in before} == {"127.0.0.1"}
    assert len({rank["MASTER_PORT"] for rank in before}) == 1
    assert {rank["OMP_NUM_THREADS"] for rank in before} == {"3"}
    assert {rank["RAY_JOB_ID"] for rank in before} == {None}
    os.kill(pid, signal.SIGKILL)
    after = [json.loads(line) for line in lines(trainer, 4, boss)[2:]]
    assert all(gone(rank["pid"]) for rank in before)
    assert {rank["MASTER_PORT"] for rank in after} != {rank["MASTER_PORT"] for rank in before}
    assert [(one.name, one.with_others) for one in heard] == [("critic-0", ["trainer-0", "trainer-1"])]

    assert boss.stop(30.0, lambda: None)
    boss.close()
    assert all(gone(rank["pid"]) for rank in after)


def test_a_process_that_cannot_start_ends_the_run_with_the_end_of_its_log(
    host: Host, programs: Path, tmp_path: Path
) -> None:
    boss, heard = supervisor(host, [spec(programs, "failing", "reward-3", tmp_path / "out")])
    boss.start()

    def run_on() -> None:
        for _ in range(600):
            boss.tick(0.1)

    with pytest.raises(RunFailedError) as failure:
        run_on()
    assert "reward-3 ended with code 1: 3 starts in a row" in str(failure.value)
    assert str(failure.value).endswith("reward-3.log:\n  2026-01-01T00:00:00.000Z ERROR reward: no such model: ghost")
    assert "logs/reward-3.log" in str(failure.value)
    assert len(heard) == 2


def test_processes_that_share_see_the_gpus_of_their_share_and_others_none(
    host: Host, programs: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    processes = [
        spec(programs, "trainer", "generation-4", out, gpus=2, share="gpus-0"),
        spec(programs, "trainer", "reference-4", out, gpus=1, share="gpus-0", share_offset=1),
        spec(programs, "trainer", "reward-4", out, gpus=1),
        spec(programs, "trainer", "rollout-4", out),
    ]
    assert host.gpus() == 4
    host.place(processes)
    boss, _ = supervisor(host, processes)
    boss.start()
    seen = [json.loads(line)["CUDA_VISIBLE_DEVICES"] for line in lines(out, 4, boss)]
    boss.kill()
    shared = next(gpus for gpus in seen if "," in gpus).split(",")
    assert len(shared) == 2
    assert shared[1] in seen
    assert "" in seen
    alone = next(gpus for gpus in seen if gpus and "," not in gpus and gpus != shared[1])
    assert alone not in shared


def test_gpus_that_are_not_there_are_told(host: Host, programs: Path, tmp_path: Path) -> None:
    from rlctl.core.errors import ResourceExhaustedError
    from rlctl.launch.placement import GpuPlacement

    with pytest.raises(ResourceExhaustedError, match=r"could not place critic-9 \(8\)"):
        GpuPlacement([spec(programs, "trainer", "critic-9", tmp_path / "out", gpus=8)], timeout_s=3.0)


def test_when_the_launcher_is_killed_nothing_is_left(programs: Path, tmp_path: Path) -> None:
    launch_id = secrets.token_hex(8)
    script = tmp_path / "launch.py"
    script.write_text(
        f"""
import os, sys, time
from pathlib import Path
from rlctl.launch import sweep
from rlctl.launch.host import Host, watch
from rlctl.launch.recipe import ClusterSection
from rlctl.launch.spec import ProcessSpec
watch({launch_id!r})
os.environ[sweep.LAUNCH] = {launch_id!r}
host = Host(Path({str(tmp_path)!r}), ClusterSection(), {launch_id!r})
host.open()
spec = ProcessSpec("reward-0", "reward", "prog_sleeper", {{"out": {str(tmp_path / "out")!r}}},
                   env={{"PYTHONPATH": {str(programs)!r}}})
host.start([spec], 0)
time.sleep(600)
"""
    )
    launcher = subprocess.Popen(
        [sys.executable, str(script)], env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    )
    pid, child = map(int, lines(tmp_path / "out", 1, timeout_s=120.0)[0].split())
    assert len(sweep.marked(sweep.LAUNCH, launch_id)) >= 4
    launcher.kill()
    launcher.wait()
    deadline = time.monotonic() + 20.0
    while sweep.marked(sweep.LAUNCH, launch_id) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert sweep.marked(sweep.LAUNCH, launch_id) == []
    assert gone(pid)
    assert gone(child)
