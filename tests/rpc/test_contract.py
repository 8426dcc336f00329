"""The contract is linted, and the committed code is what it generates."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROTOS = Path(__file__).parents[2] / "protos"


def test_regenerating_gives_the_committed_files_and_buf_lint_passes(tmp_path: Path) -> None:
    copy = tmp_path / "protos"
    shutil.copytree(PROTOS, copy, ignore=shutil.ignore_patterns("*_pb2*", "__pycache__"))
    environment = {"PATH": "/usr/bin:/bin", "BIN": str(Path(sys.executable).parent), "HOME": str(tmp_path)}
    done = subprocess.run(["bash", copy / "generate.sh"], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    made = {path.relative_to(copy): path for path in copy.rglob("*_pb2*.py*") if "__pycache__" not in path.parts}
    committed = {path.relative_to(PROTOS) for path in PROTOS.rglob("*_pb2*.py*") if "__pycache__" not in path.parts}
    assert set(made) == committed
    assert len(made) == 3 * len(list(PROTOS.rglob("*.proto")))
    changed = [str(name) for name, path in made.items() if path.read_bytes() != (PROTOS / name).read_bytes()]
    assert not changed, f"run `make protos`: {changed}"


def test_a_bad_contract_does_not_pass_the_lint(tmp_path: Path) -> None:
    copy = tmp_path / "protos"
    shutil.copytree(PROTOS, copy, ignore=shutil.ignore_patterns("*_pb2*", "__pycache__"))
    proto = copy / "rlctl" / "v1" / "reward.proto"
    proto.write_text(proto.read_text().replace("service RewardService", "service Reward"))
    buf = Path(sys.executable).with_name("buf")
    done = subprocess.run(
        [buf, "lint"], cwd=copy, env={"HOME": str(tmp_path)}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode != 0
    assert 'Service name "Reward" should be suffixed with "Service"' in done.stdout


@pytest.mark.parametrize("proto", sorted(PROTOS.rglob("*.proto")), ids=lambda path: path.name)
def test_every_message_is_explained(proto: Path) -> None:
    lines = proto.read_text().split("\n")
    for number, line in enumerate(lines):
        if line.startswith(("message ", "service ", "enum ")):
            assert lines[number - 1].startswith("//"), f"{proto.name}:{number + 1}: {line} has no comment"
