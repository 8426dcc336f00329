"""New weights into live replicas of both engines, from a trainer in another process."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from rlctl.core.errors import UnavailableError
from rlctl.v1 import generation_pb2 as pb
from support.generation import Deployment
from support.publishing_trainer import disturbed, token_logprobs

PROMPT = [1, 7, 8, 9, 20]


def test_after_a_sync_logprobs_are_those_of_the_new_weights(deployment: Deployment) -> None:
    """A stale prepacked head, or a cached prefix of the old weights, would show here."""
    deployment.caller.tokens(PROMPT, max_tokens=20)
    for seed in (11, 12):
        result = deployment.publish(seed)
        assert result["ok"] == ["it"]
        assert result["num_bytes"] > 1e6
        for temperature in (1.0, 0.7):
            response = deployment.caller.tokens(PROMPT, n=2, max_tokens=30, temperature=temperature, ignore_eos=True)
            for sample in response.samples:
                expected = deployment.logprobs(PROMPT, list(sample.token_ids), temperature)
                assert sample.logprobs == pytest.approx(expected.tolist(), abs=2e-4)
                assert sample.policy_versions == [deployment.version]
        assert deployment.caller.model().policy_version == deployment.version


def _refused(deployment: Deployment, reason: str, **options: object) -> None:
    """A sync that fails takes the replica out of service; a good one brings it back."""
    before = deployment.version
    result = deployment.publish(21, **options)
    assert result["ok"] == []
    assert result["failed"]["it"][1] == reason
    assert not deployment.process.serving
    assert deployment.caller.model().policy_version == before
    with pytest.raises(UnavailableError):
        deployment.caller.tokens(PROMPT, max_tokens=1)
    assert deployment.publish(22)["ok"] == ["it"]
    assert deployment.process.serving
    sample = deployment.caller.tokens(PROMPT, max_tokens=20, ignore_eos=True).samples[0]
    assert sample.logprobs == pytest.approx(deployment.logprobs(PROMPT, list(sample.token_ids)).tolist(), abs=2e-4)
    assert sample.policy_versions == [deployment.version]


def test_a_corrupted_bucket_is_refused_and_its_version_never_served(deployment: Deployment) -> None:
    _refused(deployment, "DIGEST_MISMATCH", corrupt=True)


def test_weights_that_contradict_the_canary_are_never_served(deployment: Deployment) -> None:
    _refused(deployment, "CANARY_MISMATCH", stale_canary=True)


@pytest.mark.parametrize("name", ["model.layers.1.self_attn.k_proj.weight", "model.embed_tokens.weight"])
def test_an_update_that_lacks_weights_is_refused(deployment: Deployment, name: str) -> None:
    _refused(deployment, "INCOMPLETE", omit=name)


def test_versions_never_go_back_and_an_older_trainer_is_fenced(deployment: Deployment) -> None:
    deployment.epoch = 5
    assert deployment.publish(31)["ok"] == ["it"]
    held = deployment.version
    old = deployment.trainer.publish(**deployment.command(32, version=held - 1))
    assert old["failed"]["it"][1] == "OLD_VERSION"
    fenced = deployment.trainer.publish(**deployment.command(32, epoch=4))
    assert fenced["failed"]["it"][:2] == ["FencedError", "FENCED"]
    assert deployment.process.serving
    assert deployment.caller.model().policy_version == held


def test_requests_held_during_a_sync_carry_both_versions(deployment: Deployment) -> None:
    """Nothing is lost, and every token has the log-prob of the weights that made it, given all tokens before it."""
    assert deployment.publish(41)["ok"] == ["it"]
    old = deployment.version
    request = pb.GenerateRequest(sampling=pb.SamplingParams(n=8, max_tokens=400, ignore_eos=True), return_logprobs=True)
    request.tokens.ids.extend(PROMPT)
    calls = [deployment.caller.start(request) for _ in range(4)]
    time.sleep(0.3)
    assert deployment.publish(42)["ok"] == ["it"]
    new = deployment.version
    models = {old: disturbed(deployment.process.model, 41), new: disturbed(deployment.process.model, 42)}
    mixed = 0
    for call in calls:
        for sample in call.result(120).samples:
            assert len(sample.token_ids) == 400
            assert list(sample.policy_versions) in ([old], [old, new], [new])
            scores = {
                version: token_logprobs(model, PROMPT + list(sample.token_ids))[len(PROMPT) - 1 :]
                for version, model in models.items()
            }
            given = torch.tensor(list(sample.logprobs))
            by_old = (given - scores[old]).abs() < 1e-3
            by_new = (given - scores[new]).abs() < 1e-3
            switch = int(by_old.long().cumprod(0).sum())
            if list(sample.policy_versions) == [old, new]:
                mixed += 1
                assert 0 < switch < 400
            assert by_new[switch:].all()
    assert mixed


def test_a_publisher_that_falls_silent_ends_the_held_requests(deployment: Deployment) -> None:
    command = deployment.command(51, bucket_kb=16, pause_s=8, timeout_s=3.0)
    request = pb.GenerateRequest(sampling=pb.SamplingParams(n=4, ignore_eos=True))
    request.tokens.ids.extend(PROMPT)
    calls = [deployment.caller.start(request) for _ in range(8)]
    outcome: dict[str, object] = {}
    thread = threading.Thread(target=lambda: outcome.update(deployment.trainer.publish(**command)))
    thread.start()
    ended = [call.exception(60) for call in calls]
    thread.join()
    assert outcome["ok"] == []
    assert any(isinstance(error, UnavailableError) for error in ended)
    deployment.process.wait(serving=False, timeout_s=10)
    assert deployment.publish(52)["ok"] == ["it"]
