"""A Ray cluster that somebody else started."""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from rlctl.core.errors import UnavailableError
from rlctl.launch import sweep
from rlctl.launch.host import Host
from rlctl.launch.recipe import ClusterSection

HEAD = """
import sys
from ray.scripts.scripts import main
sys.argv = ["ray", "start", "--head", "--port=0", "--node-ip-address=127.0.0.1", "--include-dashboard=false",
            "--disable-usage-stats", "--num-cpus=1", "--object-store-memory=80000000", f"--temp-dir={sys.argv[1]}"]
main()
"""
DRIVER = """
import json, sys, time
from pathlib import Path
from rlctl.launch.host import Host
from rlctl.launch.recipe import ClusterSection
from rlctl.launch.spec import ProcessSpec
address, folder = sys.argv[1], Path(sys.argv[2])
host = Host(folder, ClusterSection(ray_address=address), "none")
host.open()
spec = ProcessSpec("reward-0", "reward", "json.tool", {"where": "{node_ip}"})
running = host.start([spec], 0)
ended = []
while not ended:
    ended = host.wait(running, 1.0)
print(json.dumps({"code": ended[0][1].code}))
import ray
ray.shutdown()
"""


def test_a_cluster_is_joined_with_its_token_and_left_running(tmp_path: Path) -> None:
    mark = secrets.token_hex(8)
    token = tmp_path / "token"
    token.write_text(secrets.token_hex(32))
    env = os.environ | {
        sweep.LAUNCH: mark,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    ray_folder = Path("/tmp") / f"rlctl-test-{mark}"
    try:
        said = subprocess.run(
            [sys.executable, "-c", HEAD, str(ray_folder)], env=env, capture_output=True, text=True, timeout=120
        )
        assert said.returncode == 0, said.stderr
        found = re.search(r"\d+\.\d+\.\d+\.\d+:\d+", said.stdout)
        assert found is not None
        address = found[0]
        ran = subprocess.run(
            [sys.executable, "-c", DRIVER, address, str(tmp_path)], env=env, capture_output=True, text=True, timeout=120
        )
        assert ran.returncode == 0, ran.stderr
        assert json.loads(ran.stdout.splitlines()[-1])["code"] != 0
        assert "node_ip" not in (tmp_path / "config" / "reward-0.json").read_text()
        assert sweep.marked(sweep.LAUNCH, mark)
    finally:
        sweep.sweep(sweep.LAUNCH, mark)
        subprocess.run(["rm", "-rf", str(ray_folder)], check=True)


def test_an_address_where_no_cluster_is_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"Ray at 127\.0\.0\.1:1 did not come up.*Check the address"):
        Host(tmp_path, ClusterSection(ray_address="127.0.0.1:1"), "none").open()
