"""What a service process settles before it imports torch, each case in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from rlctl.core import process

CODE = """
import os
from rlctl.core.process import prepare_compute

def resident() -> int:
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

prepare_compute(3)
before = resident()
block = bytearray(200 << 20)
del block
print(os.environ["OMP_NUM_THREADS"], (resident() - before) >> 20)
"""


@pytest.mark.parametrize(
    ("variables", "kept"),
    [({}, True), ({"MALLOC_ARENA_MAX": "4"}, False), ({"GLIBC_TUNABLES": "glibc.malloc.arena_max=4"}, False)],
)
def test_freed_memory_is_kept_unless_the_environment_says_otherwise(variables: dict[str, str], kept: bool) -> None:
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run([sys.executable, "-c", CODE], env=plain | variables, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    threads, megabytes = done.stdout.split()
    assert threads == "3"
    assert (int(megabytes) > 150) == kept


def test_a_glibc_that_takes_no_large_block_size_gets_its_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Had it none, a limit on what lies free would fix the block size at 128 KiB, and more would be given back."""
    for name in [name for name in os.environ if name.startswith(("MALLOC_", "GLIBC_"))]:
        monkeypatch.delenv(name)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MALLOC_TRIM_THRESHOLD_"):
        monkeypatch.setenv(name, "1")
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_")
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "")
    monkeypatch.delenv("MALLOC_MMAP_THRESHOLD_")
    old = SimpleNamespace(mallopt=lambda number, size: int(number != -3 or size <= 32 << 20))
    monkeypatch.setattr(process.ctypes, "CDLL", lambda _: old)
    process.prepare_compute(1)
    assert os.environ["MALLOC_MMAP_THRESHOLD_"] == str(32 << 20)
    assert os.environ["MALLOC_TRIM_THRESHOLD_"] == str(1 << 30)
