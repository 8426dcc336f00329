"""From a recipe to the processes of a run: a pure function of the recipe, the model's folder and the ports.

nats ── generation-0..N ── reward-0..M ── reference-0..K ── rollout-0..W
  └── group "learners": critic-0..C, trainer-0..R
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlctl.bus.config import BusConfig
from rlctl.core.config import StrictConfig
from rlctl.critic.config import CriticConfig
from rlctl.generation.config import GenerationConfig
from rlctl.launch import memory
from rlctl.launch.colocation import colocated
from rlctl.launch.recipe import Recipe
from rlctl.launch.spec import NODE_IP, Plan, ProcessSpec
from rlctl.learner.config import LearnerConfig
from rlctl.reference.config import ReferenceConfig
from rlctl.reward.config import RewardConfig
from rlctl.rollout.config import RolloutConfig
from rlctl.rpc.config import ChannelConfig, ServerConfig
from rlctl.trainer.config import TrainerConfig

LEARNERS = "learners"


class Planner:
    """Plans one run.

    `model` is the policy's folder (or its name, where it is not here yet), `nats_port` the port of the run's
    own NATS server, `gpu` whether models live on GPUs.
    """

    def __init__(self, recipe: Recipe, *, model: str, nats_port: int, gpu: bool) -> None:
        self._recipe = recipe
        self._model = model
        self._nats_port = nats_port
        self._gpu = gpu
        url = recipe.nats_url or f"nats://127.0.0.1:{nats_port}"
        self._bus = BusConfig.model_validate(_set(recipe.bus) | {"url": url, "run": recipe.name})
        self._run_dir = recipe.run_dir.resolve()

    def plan(self) -> Plan:
        recipe = self._recipe
        processes = []
        if recipe.nats_url is None:
            processes.append(self._nats())
        processes += [self._generation(index) for index in range(recipe.generation.replicas)]
        if not recipe.reward.addresses:
            processes += [self._reward(index) for index in range(recipe.reward.replicas)]
        if recipe.needs_reference and not recipe.reference.addresses:
            processes += [self._reference(index) for index in range(recipe.reference.replicas)]
        if recipe.needs_critic:
            processes += [self._critic(rank) for rank in range(recipe.critic.learner.ranks)]
        processes += [self._rollout(index) for index in range(recipe.rollout.workers)]
        processes += [self._trainer(rank) for rank in range(recipe.actor.ranks)]
        return Plan(recipe.name, [colocated(process, recipe) for process in processes], self._notes())

    def _nats(self) -> ProcessSpec:
        config = {
            "store_dir": str(self._run_dir / "nats"),
            "port": self._nats_port,
            "log_path": str(self._run_dir / "logs" / "nats-0.log"),
            "max_payload_mb": self._recipe.bus.max_payload_mb,
            "run": self._recipe.name,
        }
        return ProcessSpec("nats-0", "nats", "rlctl.launch.broker", config, memory_mb=SMALL_MB)

    def _generation(self, index: int) -> ProcessSpec:
        section = self._recipe.generation
        config = GenerationConfig.model_validate(
            _set(section, without=("replicas", "listen"))
            | {
                "model": section.model or self._model,
                "server": self._server(section),
                "weights": self._weights(),
                "seed": section.seed + index,
                "catch_up": True,
            }
        )
        size = memory.model_size(config.model)
        host_mb = memory.VLLM_MB if config.engine != "transformers" else memory.TORCH_MB
        if not self._gpu:
            host_mb += memory.weights_mb(size, config.dtype) + config.kv_cache_mb
        total_gb = self._recipe.cluster.gpu_memory_gb or 0.0
        return ProcessSpec(
            f"generation-{index}",
            "generation",
            "rlctl.generation",
            _json(config),
            env=environment(config.threads, [config.model]),
            gpus=section.tensor_parallel if self._gpu else 0,
            memory_mb=host_mb,
            gpu_memory_gb=config.gpu_memory_utilization * total_gb,
        )

    def _reward(self, index: int) -> ProcessSpec:
        section = self._recipe.reward
        config = RewardConfig.model_validate(
            _set(section, without=("replicas", "listen", "addresses")) | {"server": self._server(section)}
        )
        models = [scorer for scorer in config.scorers if scorer.kind == "model"]
        weights = sum(memory.weights_mb(memory.model_size(scorer.model), scorer.dtype) for scorer in models)
        host_mb = memory.TORCH_MB if models else memory.SMALL_MB
        return ProcessSpec(
            f"reward-{index}",
            "reward",
            "rlctl.reward",
            _json(config),
            env=environment(config.threads, [scorer.model for scorer in models]),
            gpus=1 if self._gpu and models else 0,
            memory_mb=host_mb + (0 if self._gpu else weights),
            gpu_memory_gb=gigabytes(weights) if models else 0.0,
        )

    def _reference(self, index: int) -> ProcessSpec:
        section = self._recipe.reference
        config = ReferenceConfig.model_validate(
            _set(section, without=("replicas", "listen", "addresses"))
            | {"model": section.model or self._model, "server": self._server(section)}
        )
        weights = memory.weights_mb(memory.model_size(config.model), config.dtype)
        return ProcessSpec(
            f"reference-{index}",
            "reference",
            "rlctl.reference",
            _json(config),
            env=environment(config.threads, [config.model]),
            gpus=1 if self._gpu else 0,
            memory_mb=memory.TORCH_MB + (0 if self._gpu else weights),
            gpu_memory_gb=gigabytes(weights),
        )

    def _critic(self, rank: int) -> ProcessSpec:
        recipe, section = self._recipe, self._recipe.critic
        updates = recipe.train.steps * recipe.train.passes * recipe.train.minibatches
        config = CriticConfig.model_validate(
            _set(section, without=("listen",))
            | {
                "model": section.model or self._model,
                "server": self._server(section),
                "checkpoint_dir": self._run_dir / "critic",
                "total_steps": updates,
                "seed": recipe.seed,
            }
        )
        return self._learner("critic", rank, config.learner, config.model, config)

    def _trainer(self, rank: int) -> ProcessSpec:
        recipe = self._recipe
        config = TrainerConfig.model_validate(
            {name: getattr(recipe, name) for name in TrainerConfig.model_fields if name in _TRAINING}
            | {
                "run": recipe.name,
                "run_dir": self._run_dir,
                "model": self._model,
                "server": self._server(None),
                "bus": self._bus,
                "weights": self._weights(),
                "generation": self._channel(),
                "generation_replicas": recipe.generation.replicas,
                "reward": self._channel(recipe.reward.addresses),
                "critic": self._channel(),
            }
        )
        return self._learner("trainer", rank, config.actor, config.model, config)

    def _learner(
        self, service: str, rank: int, learner: LearnerConfig, model: str, config: StrictConfig
    ) -> ProcessSpec:
        need = training_mb(learner, model)
        assert service in ("critic", "trainer")
        return ProcessSpec(
            f"{service}-{rank}",
            "critic" if service == "critic" else "trainer",
            f"rlctl.{service}",
            _json(config),
            rank=rank,
            ranks=learner.ranks,
            group=LEARNERS,
            env=environment(learner.threads, [model]),
            gpus=1 if self._gpu else 0,
            memory_mb=memory.DEEPSPEED_MB + (0 if self._gpu else need),
            gpu_memory_gb=gigabytes(need),
        )

    def _rollout(self, index: int) -> ProcessSpec:
        recipe = self._recipe
        config = RolloutConfig.model_validate(
            _set(recipe.rollout, without=("workers",))
            | {
                "bus": self._bus,
                "generation": self._channel(),
                "reward": self._channel(recipe.reward.addresses),
                "reference": self._channel(recipe.reference.addresses),
                "server": self._server(None),
            }
        )
        return ProcessSpec(
            f"rollout-{index}", "rollout", "rlctl.rollout", _json(config), env=environment(1, []), memory_mb=SMALL_MB
        )

    @property
    def _spread(self) -> bool:
        return self._recipe.cluster.nodes > 1

    def _server(self, section: Any) -> ServerConfig:
        """Where a service listens: its own port, else any free one; on several machines at the machine's address."""
        server = self._recipe.server
        listen = getattr(section, "listen", None)
        if listen is None:
            listen = f"{NODE_IP}:0" if self._spread else server.listen
        return ServerConfig.model_validate(_set(server) | {"listen": listen, "registry": self._bus})

    def _channel(self, addresses: list[str] | None = None) -> ChannelConfig:
        return ChannelConfig.model_validate(_set(self._recipe.channel) | {"addresses": addresses or []})

    def _weights(self) -> dict[str, Any]:
        weights = _set(self._recipe.weights)
        if self._spread and self._recipe.weights.interface == "127.0.0.1":
            weights["interface"] = NODE_IP
        return weights

    def _notes(self) -> list[str]:
        recipe = self._recipe
        notes = []
        if recipe.generation.dtype != recipe.actor.dtype:
            notes.append(
                f"generation runs in {recipe.generation.dtype} and the actor in {recipe.actor.dtype}: "
                "sampler and trainer will disagree more than they must"
            )
        lora = recipe.actor.lora
        if lora is not None and lora.quantize_4bit and recipe.needs_reference and not recipe.reference.quantize_4bit:
            notes.append(
                "the actor's base is held in 4 bits and the reference is not: their KL is above 0 from the start; "
                "set reference.quantize_4bit = true"
            )
        if memory.model_size(self._model) is None:
            notes.append(f"the size of {self._model or 'the model'} is not known: its memory was not checked")
        if self._spread:
            notes.append("Ray, gloo and NCCL are not encrypted: keep cluster.interface on a private network")
        return notes


SMALL_MB = memory.SMALL_MB
_TRAINING = frozenset(Recipe.model_fields)


def environment(threads: int, models: list[str]) -> dict[str, str]:
    """Thread counts, and no look at the hub where every model is a folder."""
    env = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    env["TOKENIZERS_PARALLELISM"] = "false"
    # Else gRPC's core tells of every connection that a drained peer closes.
    env["GRPC_VERBOSITY"] = "ERROR"
    if models and all(Path(model).is_dir() for model in models):
        env["HF_HUB_OFFLINE"] = "1"
    return env


def training_mb(learner: LearnerConfig, model: str) -> int:
    """MiB of one training rank of a model."""
    return memory.training_mb(
        memory.model_size(model),
        dtype=learner.dtype,
        ranks=learner.ranks,
        zero_stage=learner.zero_stage,
        lora=learner.lora is not None,
        quantized=learner.lora is not None and learner.lora.quantize_4bit,
        micro_batch_tokens=learner.micro_batch_tokens // learner.sequence_parallel,
        logits_chunk=learner.logits_chunk,
        checkpointing=learner.gradient_checkpointing,
    )


def _set(config: StrictConfig, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """What was set in a section, so that defaults of the service's own settings stay theirs."""
    return {name: getattr(config, name) for name in config.model_fields_set if name not in without}


def _json(config: StrictConfig) -> dict[str, Any]:
    tree: dict[str, Any] = config.model_dump(mode="json")
    return tree


def gigabytes(mebibytes: int) -> float:
    return mebibytes * memory.MIB / 1e9
