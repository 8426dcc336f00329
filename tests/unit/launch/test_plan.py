"""From a recipe to processes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from rlctl.core.config import load
from rlctl.launch import memory
from rlctl.launch.plan import Planner
from rlctl.launch.recipe import Recipe, find_recipe, recipe_names
from rlctl.launch.spec import NODE_IP, Plan, shares
from rlctl.trainer.config import TrainerConfig


def plan(*settings: str, model: str = "org/model-7B", gpu: bool = False, recipe: Path | None = None) -> Plan:
    made = load(Recipe, recipe, [f"model={model}", "name=trial", *settings])
    return Planner(made, model=model, nats_port=4333, gpu=gpu).plan()


def names(made: Plan) -> list[str]:
    return [process.name for process in made.processes]


def test_ppo_has_every_service_and_the_critic_restarts_with_the_trainer() -> None:
    made = plan("advantage.estimator=gae", "actor.ranks=2", "generation.replicas=2", "rollout.workers=2")
    assert names(made) == [
        "nats-0", "generation-0", "generation-1", "reward-0", "reference-0", "critic-0", "rollout-0", "rollout-1",
        "trainer-0", "trainer-1",
    ]  # fmt: skip
    groups = {process.name: process.restart_group for process in made.processes}
    assert groups["critic-0"] == groups["trainer-0"] == groups["trainer-1"]
    assert groups["rollout-1"] == "rollout-1"
    assert [(process.rank, process.ranks) for process in made.of("trainer")] == [(0, 2), (1, 2)]


def test_runs_without_a_critic_or_a_reference_start_none() -> None:
    assert names(plan("advantage.estimator=group_norm", "kl.coef=0")) == [
        "nats-0", "generation-0", "reward-0", "rollout-0", "trainer-0",
    ]  # fmt: skip


def test_a_reference_that_is_not_the_base_of_qlora_is_told() -> None:
    told = "set reference.quantize_4bit = true"
    assert any(told in note for note in plan("actor.lora.quantize_4bit=true").notes)
    for settings in (["reference.quantize_4bit=true"], ["kl.coef=0"], ["actor.lora.quantize_4bit=false"]):
        assert not any(told in note for note in plan("actor.lora.quantize_4bit=true", *settings).notes)


def test_services_that_run_elsewhere_are_not_started_but_reached() -> None:
    made = plan("reward.addresses=['10.0.0.1:7000']", "nats_url=nats://10.0.0.2:4222", "kl.coef=0")
    assert names(made) == ["generation-0", "critic-0", "rollout-0", "trainer-0"]
    assert made.of("rollout")[0].config["reward"]["addresses"] == ["10.0.0.1:7000"]
    assert made.of("trainer")[0].config["bus"]["url"] == "nats://10.0.0.2:4222"


def test_the_trainer_gets_the_recipe_and_what_the_launcher_knows() -> None:
    made = plan("train.steps=7", "train.passes=2", "train.minibatches=4", "seed=5", "generation.replicas=3")
    trainer = TrainerConfig.model_validate(made.of("trainer")[0].config)
    assert (trainer.run, trainer.run_dir, trainer.model) == ("trial", Path("runs/trial").resolve(), "org/model-7B")
    assert (trainer.train.steps, trainer.seed, trainer.generation_replicas) == (7, 5, 3)
    assert (trainer.bus.url, trainer.bus.run) == ("nats://127.0.0.1:4333", "trial")
    critic = made.of("critic")[0].config
    assert critic["total_steps"] == 7 * 2 * 4
    assert critic["model"] == "org/model-7B"
    assert critic["checkpoint_dir"] == str(Path("runs/trial").resolve() / "critic")
    assert [process.config["seed"] for process in made.of("generation")] == [0, 1, 2]
    assert all(process.config["catch_up"] for process in made.of("generation"))


def test_thread_counts_are_those_of_each_section(tmp_path: Path) -> None:
    made = plan("generation.threads=2", "actor.threads=3", "critic.learner.threads=4", model=str(tmp_path))
    threads = {process.service: process.env.get("OMP_NUM_THREADS") for process in made.processes}
    assert threads == {
        "nats": None, "generation": "2", "reward": "1", "reference": "1", "critic": "4", "rollout": "1", "trainer": "3",
    }  # fmt: skip
    assert made.of("trainer")[0].env["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in plan().of("trainer")[0].env


@pytest.mark.parametrize(
    "colocate, expected",
    [
        ("none", {"trainer-0": 1, "trainer-1": 1, "reference-0": 1, "critic-0": 1, "generation-0": 2}),
        ("actor_ref", {"gpus-0": 1, "gpus-1": 1, "critic-0": 1, "generation-0": 2}),
        ("all", {"gpus-0": 2}),
    ],
)
def test_gpus_are_shared_as_asked(colocate: str, expected: dict[str, int]) -> None:
    made = plan("actor.ranks=2", "generation.tensor_parallel=2", f"cluster.colocate={colocate}", gpu=True)
    assert shares(made.processes) == expected


def test_two_ranks_that_share_with_one_replica_of_two_gpus_have_one_each() -> None:
    made = plan("actor.ranks=2", "generation.tensor_parallel=2", "cluster.colocate=all", gpu=True)
    assert [process.share_offset for process in made.of("trainer")] == [0, 1]
    assert [process.gpus for process in made.of("generation")] == [2]


def test_services_of_several_machines_listen_at_the_address_of_theirs() -> None:
    made = plan("cluster.nodes=2", "cluster.ray_address=h:1", "nats_url=nats://n:1", gpu=True)
    assert made.of("generation")[0].config["server"]["listen"] == f"{NODE_IP}:0"
    assert made.of("trainer")[0].config["weights"]["interface"] == NODE_IP
    assert any("not encrypted" in note for note in made.notes)


def test_memory_of_a_rank_is_weights_gradients_and_states_shared_by_zero() -> None:
    size = memory.ModelSize(2**20)
    common = {"lora": False, "quantized": False, "micro_batch_tokens": 16, "logits_chunk": 16, "checkpointing": False}

    def need(dtype: str, ranks: int, zero_stage: int) -> int:
        return memory.training_mb(size, dtype=dtype, ranks=ranks, zero_stage=zero_stage, **common)

    assert need("float32", 1, 0) == 4 + 4 + 8
    assert need("bfloat16", 1, 0) == 2 + 2 + 12
    assert need("bfloat16", 4, 1) == 2 + 2 + 3
    assert need("bfloat16", 4, 2) == int(2 + 0.5 + 3)
    assert need("bfloat16", 4, 3) == 4


@pytest.mark.parametrize(
    "name, parameters",
    [
        ("Qwen/Qwen2.5-7B-Instruct", 7_000_000_000),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", 135_000_000),
        ("org/llama-3.1-70b", 70_000_000_000),
    ],
)
def test_the_size_of_a_model_that_is_not_here_is_read_from_its_name(name: str, parameters: int) -> None:
    size = memory.model_size(name)
    assert size is not None
    assert size.parameters == parameters


def test_the_size_of_a_model_in_a_folder_is_read_from_its_weights(tmp_path: Path) -> None:
    save_file({"a": np.zeros((3, 4), np.float32), "b": np.zeros(5, np.float16)}, tmp_path / "model-1.safetensors")
    save_file({"c": np.zeros((2, 2, 2), np.float32)}, tmp_path / "model-2.safetensors")
    shape = {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 90, "max_position_embeddings": 512}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    assert memory.model_size(str(tmp_path)) == memory.ModelSize(3 * 4 + 5 + 2 * 2 * 2, 64, 2, 90)
    assert memory.max_positions(str(tmp_path)) == 512
    assert memory.model_size(str(tmp_path / "none")) is None


def test_every_recipe_that_comes_along_can_be_planned() -> None:
    assert recipe_names() == ["gpu-70b", "gpu-7b", "quickstart", "smollm2", "smollm2-ppo"]
    for name in recipe_names():
        recipe = load(Recipe, find_recipe(name))
        made = Planner(recipe, model=recipe.model, nats_port=1, gpu=recipe.cluster.device == "gpu").plan()
        assert len(made.of("trainer")) == recipe.actor.ranks
