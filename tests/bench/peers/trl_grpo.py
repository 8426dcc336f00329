"""The peer of `end_to_end.py`: TRL's GRPOTrainer, same model, prompts, reward and lengths, on this machine's CPU.

Needs `trl` (make test-optional installs it). Prints one JSON line with the median seconds of a step.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import tempfile
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")


def reward(completions, label, **_):
    """1 when the first integer of a completion is the label."""
    found = (re.search(r"-?\d+", text) for text in completions)
    return [float(match is not None and match.group() == str(want)) for match, want in zip(found, label, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompts", required=True, help="jsonl with prompt and label")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--prompts-per-step", type=int, default=4)
    parser.add_argument("--n", type=int, default=8)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--micro-batch", type=int, default=8)
    parser.add_argument("--dtype", default="bfloat16")
    given = parser.parse_args()

    from datasets import load_dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    class Clock(TrainerCallback):
        def __init__(self) -> None:
            self.begun, self.seconds = 0.0, []

        def on_step_begin(self, *_, **__):
            self.begun = time.perf_counter()

        def on_step_end(self, *_, **__):
            self.seconds.append(time.perf_counter() - self.begun)

    samples = given.prompts_per_step * given.n
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder,
            use_cpu=True,
            gradient_checkpointing=False,
            dataloader_pin_memory=False,
            per_device_train_batch_size=given.micro_batch,
            gradient_accumulation_steps=samples // given.micro_batch,
            num_generations=given.n,
            max_completion_length=given.new_tokens,
            generation_kwargs={"min_new_tokens": given.new_tokens},
            max_steps=given.steps,
            beta=0.04,
            learning_rate=1e-6,
            lr_scheduler_type="constant",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            model_init_kwargs={"dtype": given.dtype},
        )
        trainer = GRPOTrainer(
            model=given.model,
            reward_funcs=reward,
            args=config,
            callbacks=[clock],
            train_dataset=load_dataset("json", data_files=str(Path(given.prompts)), split="train"),
        )
        trainer.train()
    step = statistics.median(clock.seconds[given.warmup :])
    print(json.dumps({"system": "trl", "step_seconds": round(step, 3), "samples_per_s": round(samples / step, 3)}))


if __name__ == "__main__":
    main()
