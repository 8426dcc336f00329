"""Tokens a second through the generation service's gRPC and from the bare AsyncLLM behind it.

A round samples `--prompts` prompts `--n` times, `--new-tokens` tokens each, with log-probs and text. The client is a
process of its own; the bare engine is driven from the serving process. Rounds alternate, medians are compared:

    python tests/bench/generation.py --model FOLDER            prints one JSON line; "ratio" is grpc / bare
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


def requests(options: argparse.Namespace) -> list[list[int]]:
    """Prompts that share nothing but their length."""
    return [
        [(7 + 13 * index + 5 * place) % 70 + 4 for place in range(options.length)] for index in range(options.prompts)
    ]


async def client(options: argparse.Namespace) -> None:
    """Runs a round for every line on stdin; answers with its seconds."""
    from rlctl.clients.generation import GenerationClient
    from rlctl.rpc.config import ChannelConfig
    from rlctl.rpc.pool import Pool
    from rlctl.v1 import generation_pb2 as pb

    pool = Pool("generation", ChannelConfig(addresses=[options.client], timeout_s=600.0))
    generation = GenerationClient(pool)
    sampling = pb.SamplingParams(n=options.n, max_tokens=options.new_tokens, ignore_eos=True)
    messages = [
        pb.GenerateRequest(tokens={"ids": ids}, sampling=sampling, return_logprobs=True) for ids in requests(options)
    ]
    while await asyncio.to_thread(sys.stdin.readline):
        begin = time.perf_counter()
        answers = await asyncio.gather(*(generation.generate(message) for message in messages))
        seconds = time.perf_counter() - begin
        assert all(len(sample.logprobs) == options.new_tokens for answer in answers for sample in answer.samples)
        print(seconds, flush=True)
    await pool.close()


async def bare_round(llm: Any, options: argparse.Namespace, round: int) -> float:
    """The same straight from AsyncLLM."""
    from vllm import SamplingParams
    from vllm.inputs import TokensPrompt
    from vllm.sampling_params import RequestOutputKind

    async def one(index: int, ids: list[int]) -> None:
        params = SamplingParams(
            n=options.n,
            max_tokens=options.new_tokens,
            ignore_eos=True,
            logprobs=0,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        async for _ in llm.generate(TokensPrompt(prompt_token_ids=ids), params, f"bare-{round}-{index}"):
            pass

    begin = time.perf_counter()
    await asyncio.gather(*(one(index, ids) for index, ids in enumerate(requests(options))))
    return time.perf_counter() - begin


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    from rlctl.generation.config import GenerationConfig
    from rlctl.generation.hosted import GenerationHosted
    from rlctl.rpc.service import start

    config = GenerationConfig.model_validate(
        {
            "model": options.model,
            "engine": "vllm",
            "dtype": options.dtype,
            "kv_cache_mb": 256,
            "threads": options.threads,
            "enable_prefix_caching": False,
            "max_model_len": 512,
            "server": {"metrics_listen": None},
        }
    )
    hosted = GenerationHosted(config)
    service = await start("generation", config.server, hosted)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *sys.argv,
        "--client",
        service.address,
        stdin=-1,
        stdout=-1,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.stdin is not None and process.stdout is not None
    llm: Any = hosted._engine._llm  # type: ignore[union-attr]
    seconds: dict[str, list[float]] = {"grpc": [], "bare": []}
    for round in range(options.rounds + 1):
        for name in ("grpc", "bare") if round % 2 else ("bare", "grpc"):
            if name == "bare":
                seconds[name].append(await bare_round(llm, options, round))
            else:
                process.stdin.write(b"go\n")
                seconds[name].append(float(await process.stdout.readline()))
    process.stdin.close()
    await process.wait()
    await service.stop()
    tokens = options.prompts * options.n * options.new_tokens
    rates = {name: tokens / statistics.median(values[1:]) for name, values in seconds.items()}
    return {
        "bench": "generation",
        "ratio": round_to(rates["grpc"] / rates["bare"]),
        **{f"{name}_tokens_per_s": round_to(rate) for name, rate in rates.items()},
        "tokens": tokens,
        "rounds": options.rounds,
        "threads": options.threads,
        "dtype": options.dtype,
    }


def round_to(value: float) -> float:
    return float(f"{value:.4g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=SMOLLM2, help="a folder or a hub name")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--n", type=int, default=8)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each that count")
    parser.add_argument("--client", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.model = str(resolve(options.model))
    if options.client:
        asyncio.run(client(options))
        return
    from rlctl.core.process import prepare_compute

    prepare_compute(options.threads)
    print(json.dumps(asyncio.run(measure(options))))


if __name__ == "__main__":
    main()
