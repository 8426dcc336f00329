"""A mixture of experts: its weights come expert by expert, as checkpoints on the hub have them, and both engines serve
them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rlctl.rpc.portal import Portal
from support.generation import Deployment, Replica, TrainerProcess
from support.tiny import tiny_llama
from support.tiny_moe import tiny_moe

PROMPT = [1, 7, 8, 9, 20]


@pytest.fixture(params=["transformers", "vllm"])
def experts(
    request: pytest.FixtureRequest, portal: Portal, trainer: TrainerProcess, tmp_path: Path
) -> Iterator[Deployment]:
    folder = tiny_llama(tmp_path / "model")  # for its tokenizer
    tiny_moe(folder, hidden=128, vocabulary=80)
    replica = Replica(folder, request.param, tmp_path / "replica.log", max_num_seqs=4)
    try:
        deployment = Deployment(replica, portal, trainer)
        replica.wait()
        yield deployment
    finally:
        replica.stop()


def test_after_a_sync_the_new_experts_are_served(experts: Deployment) -> None:
    result = experts.publish(3)
    assert result["ok"] == ["it"], result
    sample = experts.caller.tokens(PROMPT, max_tokens=20, ignore_eos=True).samples[0]
    assert sample.logprobs == pytest.approx(experts.logprobs(PROMPT, list(sample.token_ids)).tolist(), abs=2e-4)
    name = "model.layers.1.block_sparse_moe.experts.2.w2.weight"
    lacking = experts.publish(4, omit=name)
    assert lacking["ok"] == [] and lacking["failed"]["it"][1] == "INCOMPLETE"
