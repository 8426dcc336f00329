"""Seconds of a weight sync from a torch publisher into a live replica, against the least it could cost: a raw
gloo broadcast of one flat buffer of as many bytes, and (vLLM alone) the engine's own reload of the same weights.

The publisher is a process of its own. A round does each of the three once; medians are compared:

    python tests/bench/sync.py [--model FOLDER]           prints one JSON line; "ratio" is sync / broadcast
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from typing import Any

from rlctl.models.source import SMOLLM2, resolve

TIMEOUT_S = 120.0


def trainer(options: argparse.Namespace) -> None:
    """Does what the lines on stdin say; answers with the seconds it took."""
    import torch
    from transformers import AutoModelForCausalLM

    from rlctl.clients.weights import WeightsClient
    from rlctl.rpc.config import ChannelConfig
    from rlctl.rpc.portal import Portal
    from rlctl.weights.config import WeightsConfig
    from rlctl.weights.group import Meeting
    from rlctl.weights.publisher import Member, Publisher

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=getattr(torch, options.dtype))
    num_bytes = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    portal = Portal()

    async def connect() -> WeightsClient:
        return WeightsClient(options.trainer, ChannelConfig())

    members = [Member("replica", options.trainer, portal.call(connect), 1)]
    publisher = Publisher(WeightsConfig(bucket_mb=options.bucket_mb), portal, torch.device("cpu"))
    meeting = Meeting("127.0.0.1", TIMEOUT_S)
    flat = torch.ones(num_bytes, dtype=torch.uint8)
    print(json.dumps({"port": meeting.port, "num_bytes": num_bytes}), flush=True)
    while not meeting.is_here("raw", 1):
        time.sleep(0.01)
    group = meeting.depart("raw", "gloo", 2)
    version = 0
    for line in sys.stdin:
        begin = time.perf_counter()
        if line.strip() == "sync":
            version += 1
            result = publisher.publish(
                epoch=1, version=version, weights=lambda: iter(model.named_parameters()), members=members
            )
            assert result.ok, result.failed
        else:
            group.broadcast(flat)
        print(time.perf_counter() - begin, flush=True)


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    import torch

    from rlctl.generation.config import GenerationConfig
    from rlctl.generation.hosted import GenerationHosted
    from rlctl.rpc.service import start
    from rlctl.weights.group import Invitation, join

    config = GenerationConfig.model_validate(
        {
            "model": options.model,
            "engine": options.engine,
            "dtype": options.dtype,
            "kv_cache_mb": 128,
            "max_model_len": 512,
            "server": {"metrics_listen": None},
        }
    )
    hosted = GenerationHosted(config)
    service = await start("generation", config.server, hosted)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *sys.argv,
        "--trainer",
        service.address,
        stdin=-1,
        stdout=-1,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.stdin is not None and process.stdout is not None
    known = json.loads(await process.stdout.readline())
    invitation = Invitation("raw", "gloo", "127.0.0.1", known["port"], 2, 1, TIMEOUT_S)
    group = await asyncio.to_thread(join, invitation)
    flat = torch.empty(known["num_bytes"], dtype=torch.uint8)
    llm: Any = getattr(hosted._engine, "_llm", None)
    seconds: dict[str, list[float]] = {"sync": [], "broadcast": [], "load": []}

    async def ask(what: str) -> float:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(f"{what}\n".encode())
        return float(await process.stdout.readline())

    for _ in range(options.rounds + 1):
        seconds["sync"].append(await ask("sync"))
        sent, _ = await asyncio.gather(ask("broadcast"), asyncio.to_thread(group.broadcast, flat))
        seconds["broadcast"].append(sent)
        begin = time.perf_counter()
        if llm is not None:
            await llm.collective_rpc("reload_weights")
        seconds["load"].append(time.perf_counter() - begin)
    process.stdin.close()
    await process.wait()
    await service.stop()
    medians = {name: statistics.median(values[1:]) for name, values in seconds.items()}
    return {
        "bench": "sync",
        "engine": options.engine,
        "ratio": float(f"{medians['sync'] / medians['broadcast']:.4g}"),
        "target": 2.0,
        "ratio_to_broadcast_and_load": float(f"{medians['sync'] / (medians['broadcast'] + medians['load']):.4g}"),
        **{f"{name}_s": float(f"{value:.4g}") for name, value in medians.items()},
        "num_bytes": known["num_bytes"],
        "rounds": options.rounds,
        "dtype": options.dtype,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=SMOLLM2, help="a folder or a hub name")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--engine", default="vllm", choices=["vllm", "transformers"])
    parser.add_argument("--bucket-mb", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each that count")
    parser.add_argument("--trainer", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.model = str(resolve(options.model))
    if options.trainer:
        trainer(options)
        return
    from rlctl.core.process import prepare_compute

    prepare_compute(1)
    print(json.dumps(asyncio.run(measure(options))))


if __name__ == "__main__":
    main()
