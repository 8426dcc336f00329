"""The commands, as a shell runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlctl.cli import launch, settings

LIGHT = "import sys; import rlctl.cli.main; print(' '.join(m.partition('.')[0] for m in sys.modules))"


def rlctl(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rlctl.cli.main", *arguments]
    env = os.environ | {"COLUMNS": "200", "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=cwd, env=env)


def test_help_needs_no_heavy_library() -> None:
    loaded = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, timeout=60, check=True)
    heavy = {"torch", "transformers", "ray", "vllm", "deepspeed", "grpc", "nats", "numpy", "pydantic", "rich"}
    assert heavy & set(loaded.stdout.split()) == set()


def test_help_lists_the_commands_launch_first() -> None:
    said = rlctl("--help").stdout
    listed = [line.split()[0] for line in said.partition("Commands:")[2].splitlines() if line.strip()]
    assert listed[:3] == ["launch", "status", "logs"]
    assert {"stop", "generate", "score", "chat", "export", "replay", "serve", "settings"} <= set(listed)


@pytest.mark.parametrize(
    "arguments, told, code",
    [
        (("launch", "ppo", "--dry-run", "kl.coeff=3"), "unknown setting 'kl.coeff'. Did you mean 'kl.coef'?", 2),
        (("launch", "ppo", "--dry-run", "kl.coef=much"), "kl.coef: Input should be a valid number", 2),
        (("launch", "ppo", "ghost"), "no recipe 'ghost'", 2),
        (("launch", "ppo", "quickstart", "smollm2"), "give one recipe, not quickstart and smollm2", 2),
        (("launch", "ppo", "--dry-run", "model=/no/model"), "model: '/no/model' is no folder here", 2),
        (("launch", "ppo", "--dry-run", "name=a/b"), "name: String should match pattern", 2),
        (("status", "ghost"), "no run 'ghost'", 2),
        (("logs", "ghost"), "no run 'ghost'", 2),
        (("generate", "hello"), "name a run that is up (--run NAME), or an address", 2),
        (("generate", "hello", "--address", "127.0.0.1:1", "--timeout-s", "2"), "generation", 1),
        (("settings", "--of", "ghost"), "no settings of 'ghost'", 2),
    ],
)
def test_an_error_is_one_clear_message_without_a_trace(
    arguments: tuple[str, ...], told: str, code: int, tmp_path: Path
) -> None:
    ran = rlctl(*arguments, cwd=tmp_path)
    assert ran.stderr.startswith("error: ")
    assert told in ran.stderr
    assert "Traceback" not in ran.stderr
    assert ran.returncode == code


@pytest.mark.parametrize("recipe", ["quickstart", "gpu-7b", "gpu-70b"])
def test_a_dry_run_prints_the_plan_and_writes_nothing(recipe: str, tmp_path: Path) -> None:
    ran = rlctl("launch", "ppo", recipe, "--dry-run", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert f"run {recipe}" in ran.stdout
    assert "trainer-0" in ran.stdout
    assert list(tmp_path.iterdir()) == []


def test_settings_are_documented_with_type_default_and_meaning() -> None:
    found = {setting.name: setting for setting in settings.listed("recipe")}
    assert found["kl.coef"] == settings.Setting("kl.coef", "number", "0.01", "beta; 0 starts no reference service.")
    assert found["cluster.colocate"].kind == "all or actor_ref or critic_reward or none"
    assert found["reward.scorers.*.path"].kind == "path or none"
    assert found["eval.data.split"].default == "train"
    assert "bus.url" not in found
    without = [name for name, setting in found.items() if not setting.meaning]
    assert without == []


def test_the_page_of_settings_has_every_service(tmp_path: Path) -> None:
    page = settings.page()
    for service in ("generation", "reward", "reference", "critic", "rollout", "trainer"):
        assert f"## `rlctl serve {service}`" in page
    assert "| `server.drain_s` |" in page


def test_a_run_that_is_over_is_told_from_its_folder(tmp_path: Path) -> None:
    from rlctl.core.config import load
    from rlctl.launch.recipe import Recipe
    from rlctl.launch.run_folder import RunFolder

    run = RunFolder(tmp_path / "runs" / "trial")
    run.take()
    run.write_recipe(load(Recipe, None, ["model=org/m", "name=trial"]))
    run.release()
    (run.path / "logs").mkdir()
    (run.path / "logs" / "trainer-0.log").write_text("one\ntwo\nthree\n")
    (run.path / "summary.json").write_text(
        json.dumps(
            {
                "status": "stopped", "steps": 2, "total_steps": 5, "seconds": 3.0, "time": {"train": 1.0},
                "model": None,
                "ledger": {"issued": 6, "trained": 4, "dropped": 0, "pending": 2},
            }
        )
    )  # fmt: skip
    said = rlctl("status", "trial", cwd=tmp_path).stdout
    assert "2 of 5" in said
    assert "issued 6  trained 4  dropped 0  pending 2" in said
    assert "not up" in said
    assert "trial" in rlctl("status", cwd=tmp_path).stdout
    assert rlctl("logs", "trial", "-n", "2", cwd=tmp_path).stdout == "two\nthree\n"
    stopped = rlctl("stop", "trial", cwd=tmp_path)
    assert stopped.stderr == "error: run 'trial' is not up\n"
    assert stopped.returncode == 1
    chatted = rlctl("chat", "trial", cwd=tmp_path)
    assert "no finished model yet" in chatted.stderr
    exported = rlctl("export", "trial", "out", cwd=tmp_path)
    assert "has no checkpoint yet" in exported.stderr


def test_a_package_that_is_not_installed_is_named_with_its_extra() -> None:
    program = "import sys; sys.modules['psutil'] = None; sys.argv = ['rlctl', 'launch', 'ppo', '--dry-run']\n"
    program += "from rlctl.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "needs the package 'psutil'" in done.stderr and ".[train,cpu]" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_long_setting_is_no_recipe() -> None:
    setting = "ptx.data=[{ path = '" + "x" * 300 + "' }]"
    assert launch._split(["quickstart", setting]) == ("quickstart", [setting])
