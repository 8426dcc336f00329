"""Training tokens a second, packed against padded: one optimizer step of SmolLM2-135M on responses of unlike lengths.

Both run in this process, in turn, on the same sequences; medians are compared. Prints one JSON line:

    python tests/bench/packing.py           "ratio" is packed / padded tokens a second
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time

import torch

from rlctl.learner.config import LearnerConfig, OptimizerConfig
from rlctl.learner.learner import Learner
from rlctl.learner.loss import Batch, LossOutput, Totals
from rlctl.learner.sequence import Sequence
from rlctl.models.load import load_causal_lm
from rlctl.models.source import SMOLLM2, resolve


def sequences(count: int, longest: int, vocab: int, seed: int) -> list[Sequence]:
    """Prompts of 20-60 tokens; lengths of responses as a policy writes them: many short ones, a long tail."""
    draw, tokens = random.Random(seed), torch.Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        length = min(longest, 8 + int(draw.lognormvariate(4.0, 0.9)))
        prompt, response = (
            torch.randint(10, vocab, (size,), generator=tokens) for size in (draw.randint(20, 60), length)
        )
        found.append(Sequence(prompt, response, mask=torch.ones(length, dtype=torch.bool)))
    return found


def cross_entropy(batch: Batch, totals: Totals) -> LossOutput:
    return LossOutput(-(batch.logprobs_BT * batch.mask_BT).sum() / totals.tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=SMOLLM2)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--sequences", type=int, default=48)
    parser.add_argument("--longest", type=int, default=400)
    parser.add_argument("--micro-batch-tokens", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()

    folder = resolve(given.model)
    learners = {}
    for packing in (True, False):
        config = LearnerConfig(
            dtype=given.dtype,
            packing=packing,
            micro_batch_tokens=given.micro_batch_tokens,
            threads=2,
            optimizer=OptimizerConfig(lr=1e-6),
        )
        model = load_causal_lm(folder, given.dtype, config.attention)
        learners[packing] = Learner(model, config, total_steps=100)
    batch = sequences(given.sequences, given.longest, model.config.vocab_size, seed=0)
    tokens = sum(len(one) for one in batch)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for number in range(given.rounds + 1):
        for packing, learner in learners.items():
            begun = time.perf_counter()
            learner.step(batch, cross_entropy)
            if number:
                seconds[packing].append(time.perf_counter() - begun)
            print(f"round {number}, {'packed' if packing else 'padded'}", file=sys.stderr)
    packed, padded = (tokens / statistics.median(seconds[packing]) for packing in (True, False))
    print(
        json.dumps(
            {
                "bench": "packing",
                "tokens": tokens,
                "packed_tokens_per_second": round(packed, 1),
                "padded_tokens_per_second": round(padded, 1),
                "ratio": round(packed / padded, 3),
            }
        )
    )


if __name__ == "__main__":
    main()
