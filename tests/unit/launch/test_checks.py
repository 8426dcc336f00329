"""What is wrong with a run is told before it starts, with the mend."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from rlctl.core.config import load
from rlctl.core.errors import ConfigError, NotFoundError
from rlctl.launch import checks
from rlctl.launch.plan import Planner
from rlctl.launch.recipe import Recipe, find_recipe

DATA = "data.task={ name = 'chain_sum' }"


def faults(*settings: str, ports: bool = True, gpu: bool = False, gpus: int | None = None) -> str:
    recipe = load(Recipe, None, ["model=org/model-1M", DATA, "data.max_prompt_len=64", *settings])
    plan = Planner(recipe, model=recipe.model, nats_port=4333, gpu=gpu).plan()
    try:
        checks.check(recipe, plan, here=True, ports=ports, gpus=gpus)
    except ConfigError as error:
        return error.message
    return ""


def test_a_sound_recipe_has_no_faults() -> None:
    assert faults() == ""


def test_examples_to_mix_in_are_looked_at() -> None:
    assert "ptx.data.1" in faults("ptx.data=[{ task = { name = 'chain_sum' } }, { path = '/no/such.jsonl' }]")


def test_ranks_that_share_sequences_need_fewer_samples() -> None:
    settings = ["sampling.prompts_per_step=1", "sampling.n=2", "actor.ranks=4"]
    assert "actor.ranks = 4 is above the 2 samples of a minibatch" in faults(*settings)
    assert "actor.ranks" not in faults(*settings, "actor.sequence_parallel=2")


def test_the_largest_rollout_message_is_reckoned_and_refused_above_the_limit() -> None:
    recipe = load(Recipe, None, ["sampling.n=64", "sampling.max_new_tokens=8192", "data.max_prompt_len=100"])
    assert checks.group_bytes(recipe) == 65_536 + 100 * 11 + 64 * (8192 * 19 + 512)
    text = faults("sampling.n=64", "sampling.max_new_tokens=8192", "actor.micro_batch_tokens=9000",
                  "critic.learner.micro_batch_tokens=9000")  # fmt: skip
    assert "64 samples x 8192 tokens can take 9.6 MiB, above bus.max_payload_mb = 8" in text
    assert "lower sampling.n or sampling.max_new_tokens" in text


@pytest.mark.parametrize(
    "setting, told",
    [
        ("generation.max_model_len=512", "= 1088 tokens, but generation holds 512: raise generation.max_model_len"),
        ("actor.micro_batch_tokens=1000", "actor.micro_batch_tokens = 1000 is below the longest sequence (1088"),
        ("reference.batch_tokens=64", "reference.batch_tokens = 64 is below the longest sequence"),
        ("train.minibatches=5", "256 samples a step (sampling.prompts_per_step x sampling.n) do not divide into "
         "train.minibatches = 5: 4 would do"),
        ("model=/no/such/model", "model: '/no/such/model' is no folder here and no hub name"),
        ("reference.model=ghost", "reference.model: 'ghost' is no folder here and no hub name"),
        ("data.task={ name = 'chain_sums' }", "reasoning-gym has no task 'chain_sums': did you mean 'chain_sum'?"),
        ("eval.data={ path = './none.jsonl' }", "eval.data.path: ./none.jsonl does not exist"),
        ("reward.scorers=[{ kind = 'function', path = 'ghost.py' }]", "reward.scorers.0.path: ghost.py does not exist"),
        ("bus.password_file=/no/secret", "bus.password_file: /no/secret does not exist"),
        ("server.listen=127.0.0.1:5000", "server.listen gives every service one port"),
        ("critic.model=org/model-70B", "GiB of memory and"),
        ("cluster.nodes=2", "cluster.nodes = 2 needs a Ray cluster: set cluster.ray_address"),
        ("cluster.ray_address=auto", "cluster.ray_address: 'auto' is no host:port"),
        ("cluster.nodes=2", "set nats_url"),
        ("cluster.nodes=2", "set server.tls and channel.tls"),
        ("bus.max_groups=40", "cannot hold two steps"),
    ],
)  # fmt: skip
def test_a_fault_is_told_with_its_mend(setting: str, told: str) -> None:
    assert told in faults(setting)


def test_an_empty_data_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    assert "is empty: it needs rows with 'prompt'" in faults("data.task=none", f"data.path={tmp_path / 'empty.jsonl'}")


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    assert "is no Hugging Face model (it has no config.json)" in faults(f"model={tmp_path}")


def test_a_busy_port_is_named_unless_the_run_itself_may_hold_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert f"generation.listen: 127.0.0.1:{port} is in use" in faults(f"generation.listen=127.0.0.1:{port}")
        assert f"nats_port: 127.0.0.1:{port} is in use" in faults(f"nats_port={port}")
        assert faults(f"nats_port={port}", ports=False) == ""


def test_two_services_on_one_port_are_refused() -> None:
    assert "reward.listen and generation.listen are both 127.0.0.1:1999" in faults(
        "generation.listen=127.0.0.1:1999", "reward.listen=127.0.0.1:1999"
    )
    assert "generation.listen gives 2 replicas one port" in faults(
        "generation.listen=127.0.0.1:1999", "generation.replicas=2"
    )


def test_too_few_gpus_are_told_by_role() -> None:
    text = faults("cluster.device=gpu", "actor.ranks=4", gpu=True, gpus=2)
    assert "needs 7 GPUs (generation 1, reference 1, critic 1, trainer 4; cluster.colocate = 'none')" in text
    assert "Ray sees 2" in text
    promised = ["cluster.gpus_per_node=8", "cluster.gpu_memory_gb=80"]
    assert faults("cluster.device=gpu", "actor.ranks=4", *promised, gpu=True) == ""


def test_a_gpu_that_would_have_to_hold_too_much_is_told() -> None:
    text = faults(
        "cluster.device=gpu", "model=org/m-13B", "cluster.gpus_per_node=8", "cluster.gpu_memory_gb=80", gpu=True
    )
    assert "GPU trainer-0/0 of 80 GB would have to hold 208 GB (trainer-0 208)" in text


def test_a_recipe_is_found_by_name_or_by_path(tmp_path: Path) -> None:
    assert find_recipe("quickstart").name == "quickstart.toml"
    mine = tmp_path / "mine.toml"
    mine.write_text("")
    assert find_recipe(str(mine)) == mine
    with pytest.raises(NotFoundError, match=r"no recipe 'quickstar'.*one of: gpu-70b, gpu-7b, quickstart"):
        find_recipe("quickstar")


def test_what_the_launcher_fills_in_is_refused_with_what_to_set_instead() -> None:
    with pytest.raises(ConfigError, match=r"bus\.url is filled in by the launcher: set nats_url instead"):
        load(Recipe, None, ["bus.url=nats://elsewhere:4222"])
