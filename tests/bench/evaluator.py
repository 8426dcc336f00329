"""The evaluator against a bare HTTP loop with the same concurrency, on a stand-in with a fixed latency.

    python tests/bench/evaluator.py --records 10000 --concurrency 64 --latency 1.0

prints one JSON line. "ratio" is the evaluator's wall time, from reading the files to the last byte of the report, over
that of the bare loop (the faster of one before and one after it); "asking_ratio" leaves the writing of the report out.
"memory_growth_mb" is the resident memory after all records over that after a tenth of them, each in a process of its
own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("protos", "services", "evaluator", "tests")]


async def bare_loop(url: str, bodies: list[bytes], concurrency: int) -> float:
    """Seconds for plain POSTs of the same bodies."""
    import httpx

    limits = httpx.Limits(max_connections=concurrency)
    async with httpx.AsyncClient(limits=limits, timeout=60, headers={"Content-Type": "application/json"}) as client:
        left = iter(bodies)

        async def work() -> None:
            for body in left:
                response = await client.post(f"{url}/chat/completions", content=body)
                response.json()

        begin = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(concurrency)))
        return time.perf_counter() - begin


def request_bodies(folder: Path) -> list[bytes]:
    """What the evaluator would send."""
    from rlctl.evaluator.asking import prepare
    from rlctl.evaluator.config import EvaluatorConfig
    from rlctl.evaluator.evaluate import load_index, read_rows
    from rlctl.evaluator.template import BUILT_IN

    config = EvaluatorConfig(outputs=folder / "outputs", gold=str(folder / "gold.jsonl"), max_samples=10**6)
    rows, _ = read_rows(config)
    index = load_index(config, rows, [])
    return [
        json.dumps({"model": "m", "max_tokens": 1024, "messages": BUILT_IN.messages(*prepare(row, index))}).encode()
        for row in rows
    ]


def evaluate_here(folder: Path, url: str, concurrency: int) -> dict[str, Any]:
    """Runs the evaluator in this process; its times and peak memory."""
    from rlctl.evaluator.config import EvaluatorConfig, JudgeConfig
    from rlctl.evaluator.job import run_job

    config = EvaluatorConfig(
        outputs=folder / "outputs", gold=str(folder / "gold.jsonl"), output_dir=folder / "report", max_samples=10**6,
        judges=[JudgeConfig(preset="local", model="m", base_url=url)], concurrency=concurrency,
    )  # fmt: skip
    seen: list[float] = []
    begin = time.perf_counter()
    cpu = time.process_time()
    summary = asyncio.run(run_job(config, lambda progress: seen.append(progress.seconds_left)))
    wall = time.perf_counter() - begin
    entry = summary["data_sets"]["set"]
    assert entry["measures"]["switches"]["n"] == entry["records"]
    return {
        "wall_s": wall, "asking_s": summary["run"]["seconds"], "cpu_s": time.process_time() - cpu,
        "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "told_time_left": sum(left >= 0 for left in seen),
    }  # fmt: skip


def in_its_own_process(folder: Path, url: str, concurrency: int) -> dict[str, Any]:
    """`evaluate_here` in a fresh process, so that memory is its own."""
    done = subprocess.run(
        [sys.executable, __file__, "--child", str(folder), "--url", url, "--concurrency", str(concurrency)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=2000)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--latency", type=float, default=1.0)
    parser.add_argument("--child", type=Path)
    parser.add_argument("--url", default="")
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(evaluate_here(arguments.child, arguments.url, arguments.concurrency)))
        return
    from support.pairs import write_pairs

    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path[:4])}
    command = [sys.executable, "-m", "rlctl.evaluator.standin", "--latency", str(arguments.latency)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        with tempfile.TemporaryDirectory() as name:
            few, many = Path(name) / "few", Path(name) / "many"
            write_pairs(few, arguments.records // 10, padding=40)
            write_pairs(many, arguments.records, padding=40)
            bodies = request_bodies(many)
            small = in_its_own_process(few, url, arguments.concurrency)
            before = asyncio.run(bare_loop(url, bodies, arguments.concurrency))
            whole = in_its_own_process(many, url, arguments.concurrency)
            bare = min(before, asyncio.run(bare_loop(url, bodies, arguments.concurrency)))
    finally:
        server.terminate()
        server.wait(10)
    print(json.dumps({
        "records": arguments.records, "concurrency": arguments.concurrency, "latency_s": arguments.latency,
        "bare_s": round(bare, 2), "evaluator_s": round(whole["wall_s"], 2), "ratio": round(whole["wall_s"] / bare, 3),
        "asking_ratio": round(whole["asking_s"] / bare, 3),
        "cpu_ms_per_record": round(1e3 * whole["cpu_s"] / arguments.records, 2),
        "rss_mb": round(whole["rss_mb"], 1), "memory_growth_mb": round(whole["rss_mb"] - small["rss_mb"], 1),
        "progress_with_time_left": whole["told_time_left"],
    }))  # fmt: skip


if __name__ == "__main__":
    main()
