"""Everything that can be found wrong with a run before a process is started, each with the mend in words."""

from __future__ import annotations

import difflib
import importlib.util
import re
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

from rlctl.core.errors import ConfigError
from rlctl.data.config import SourceConfig
from rlctl.launch import memory
from rlctl.launch.recipe import ClusterSection, MachinesSection, Recipe
from rlctl.launch.spec import Plan, ProcessSpec, shares
from rlctl.rpc.config import TLSConfig

#: Bytes a token takes in a rollout message: id, log-prob, reference log-prob, and its text.
RESPONSE_TOKEN_BYTES = 3 + 4 + 4 + 8
PROMPT_TOKEN_BYTES = 3 + 8
SAMPLE_BYTES = 512
GROUP_BYTES = 65_536
#: A GPU's own context, and what fragments.
GPU_MEMORY_USABLE = 0.95
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
DATA_SUFFIXES = (".json", ".jsonl", ".csv", ".parquet")


def check(recipe: Recipe, plan: Plan, *, here: bool, ports: bool, gpus: int | None) -> None:
    """Raises one ConfigError that tells every fault found.

    `here`: the run is to start on this machine, with its keys and its memory. `ports`: also look whether fixed
    ports are free (not while the run itself is up). `gpus`: those there are; None: trust `cluster.nodes` and
    `cluster.gpus_per_node`.
    """
    faults = [
        *_lengths(recipe),
        *_batches(recipe),
        *_models(recipe),
        *data_faults("data", recipe.data),
        *(data_faults("eval.data", recipe.eval.data) if recipe.eval.data is not None else ()),
        *_ptx(recipe),
        *_reward_functions(recipe),
        *(_keys(recipe) if here else ()),
        *_software(recipe),
        *library_faults(),
        *_cluster(recipe),
        *_listening(recipe, ports),
        *(memory_faults(plan) if here or recipe.cluster.device != "gpu" else ()),
        *gpu_faults(recipe.cluster, plan, gpus),
        *_tensor_parallel(recipe, plan),
    ]
    if faults:
        raise ConfigError("\n".join(faults))


def group_bytes(recipe: Recipe) -> int:
    """Largest rollout message these settings can make."""
    sample = recipe.sampling.max_new_tokens * RESPONSE_TOKEN_BYTES + SAMPLE_BYTES
    return GROUP_BYTES + recipe.data.max_prompt_len * PROMPT_TOKEN_BYTES + recipe.sampling.n * sample


def _lengths(recipe: Recipe) -> Iterator[str]:
    longest = recipe.data.max_prompt_len + recipe.sampling.max_new_tokens
    limit = recipe.bus.max_payload_mb * memory.MIB
    if group_bytes(recipe) > limit:
        yield (
            f"a prompt group of {recipe.sampling.n} samples x {recipe.sampling.max_new_tokens} tokens can take "
            f"{group_bytes(recipe) / memory.MIB:.1f} MiB, above bus.max_payload_mb = {recipe.bus.max_payload_mb}: "
            "raise it (64 at most), or lower sampling.n or sampling.max_new_tokens"
        )
    context = recipe.generation.max_model_len or memory.max_positions(recipe.generation.model or recipe.model)
    if context is not None and context < longest:
        yield (
            f"data.max_prompt_len + sampling.max_new_tokens = {longest} tokens, but generation holds {context}: "
            "raise generation.max_model_len as far as the model allows, or lower one of the two"
        )
    budgets = {"actor.micro_batch_tokens": recipe.actor.micro_batch_tokens}
    if recipe.needs_critic:
        budgets["critic.learner.micro_batch_tokens"] = recipe.critic.learner.micro_batch_tokens
    if recipe.needs_reference:
        budgets["reference.batch_tokens"] = recipe.reference.batch_tokens
    for name, budget in budgets.items():
        if budget < longest:
            yield f"{name} = {budget} is below the longest sequence ({longest} tokens): raise it to {longest} or more"


def _batches(recipe: Recipe) -> Iterator[str]:
    samples = recipe.sampling.prompts_per_step * recipe.sampling.n
    minibatches = recipe.train.minibatches
    if samples % minibatches:
        near = next(n for n in range(minibatches, 0, -1) if samples % n == 0)
        yield (
            f"{samples} samples a step (sampling.prompts_per_step x sampling.n) do not divide into "
            f"train.minibatches = {minibatches}: {near} would do"
        )
    learners = {"actor": recipe.actor}
    if recipe.needs_critic:
        learners["critic.learner"] = recipe.critic.learner
    for name, learner in learners.items():
        if learner.ranks // learner.sequence_parallel > samples // minibatches:
            yield (
                f"{name}.ranks = {learner.ranks} is above the {samples // minibatches} samples of a minibatch: lower it"
            )
    if recipe.bus.max_groups < 2 * recipe.sampling.prompts_per_step:
        yield f"bus.max_groups = {recipe.bus.max_groups} cannot hold two steps: raise it or lower prompts_per_step"


def _ptx(recipe: Recipe) -> Iterator[str]:
    for index, data in enumerate(recipe.ptx.data if recipe.ptx is not None else []):
        yield from data_faults(f"ptx.data.{index}", data)


def _models(recipe: Recipe) -> Iterator[str]:
    named = {"model": recipe.model, "generation.model": recipe.generation.model}
    if recipe.needs_reference:
        named["reference.model"] = recipe.reference.model
    if recipe.needs_critic:
        named["critic.model"] = recipe.critic.model
    for index, scorer in enumerate(recipe.reward.scorers):
        named[f"reward.scorers.{index}.model"] = scorer.model
    yield from model_faults(named)


def model_faults(named: Mapping[str, str]) -> Iterator[str]:
    """What is wrong with models by the settings that name them; of these only `model` must be set."""
    if not named["model"]:
        yield "model is not set: give a folder, a hub name such as HuggingFaceTB/SmolLM2-135M-Instruct, or a recipe"
    for name, model in named.items():
        if not model:
            continue
        folder = Path(model).expanduser()
        if folder.is_dir():
            if not (folder / "config.json").is_file():
                yield f"{name}: {folder} is no Hugging Face model (it has no config.json)"
        elif model.startswith((".", "/", "~")) or not HUB_NAME.fullmatch(model):
            yield f"{name}: {model!r} is no folder here and no hub name (owner/name): correct the path"


def data_faults(name: str, data: SourceConfig) -> Iterator[str]:
    """What is wrong with where a data set lies."""
    if data.task is None and not data.path:
        yield f"{name}.path is not set: name a data set or a file, or a reasoning-gym task ({name}.task)"
    if data.path:
        path = Path(data.path).expanduser()
        local = path.suffix in DATA_SUFFIXES or data.path.startswith((".", "/", "~")) or data.path.count("/") > 1
        if local and not path.exists():
            yield f"{name}.path: {data.path} does not exist: correct it, or give a hub name (owner/name)"
        elif path.is_file() and path.stat().st_size == 0:
            keys = (getattr(data, setting, "") for setting in ("input_key", "prompt_key", "chosen_key"))
            yield f"{name}.path: {data.path} is empty: it needs rows with {next(filter(None, keys))!r}"
    if data.task is not None:
        yield from _task(f"{name}.task.name", data.task.name)


def _task(name: str, task: str) -> Iterator[str]:
    """Looks for the name in the library's files first: to import it all takes seconds."""
    spec = importlib.util.find_spec("reasoning_gym")
    if spec is None or not spec.submodule_search_locations:
        return
    root = Path(next(iter(spec.submodule_search_locations)))
    if any(f'"{task}"' in path.read_text(encoding="utf-8") for path in root.glob("*/*.py")):
        return
    from reasoning_gym.factory import DATASETS

    if task not in DATASETS:
        near = difflib.get_close_matches(task, DATASETS, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}?" if near else "its gallery lists them"
        yield f"{name}: reasoning-gym has no task {task!r}: {hint}"


def _keys(recipe: Recipe) -> Iterator[str]:
    named: dict[str, Path | None] = {
        "server.token_file": recipe.server.token_file,
        "channel.token_file": recipe.channel.token_file,
        "bus.password_file": recipe.bus.password_file,
        "bus.ca": recipe.bus.ca,
    }
    for side, tls in (("server", recipe.server.tls), ("channel", recipe.channel.tls)):
        for part in TLSConfig.model_fields if tls is not None else ():
            value = getattr(tls, part)
            if isinstance(value, Path):
                named[f"{side}.tls.{part}"] = value
    yield from missing_files(named)


def _reward_functions(recipe: Recipe) -> Iterator[str]:
    yield from missing_files(
        {f"reward.scorers.{i}.path": scorer.path for i, scorer in enumerate(recipe.reward.scorers)}
    )


def missing_files(named: Mapping[str, Path | None]) -> Iterator[str]:
    """Files that do not exist, by the settings that name them."""
    for name, path in named.items():
        if path is not None and not path.expanduser().is_file():
            yield f"{name}: {path} does not exist: correct the path (it is relative to where rlctl is started)"


def _software(recipe: Recipe) -> Iterator[str]:
    if recipe.generation.engine == "vllm" and importlib.util.find_spec("vllm") is None:
        yield (
            "generation.engine = 'vllm', but vLLM is not installed: install rlctl[cpu] or rlctl[gpu], or choose "
            "'transformers'"
        )
    if recipe.nats_url is None:
        from rlctl.bus.server import find_binary

        try:
            find_binary()
        except ConfigError as error:
            yield f"{error.message.removesuffix('(bus.url)').rstrip()} (nats_url)"


def library_faults() -> Iterator[str]:
    """Libraries of training that are not installed."""
    for library in ("ray", "torch", "deepspeed", "reasoning_gym"):
        if importlib.util.find_spec(library) is None:
            yield f"{library} is not installed: training needs rlctl[train] (pip install 'rlctl[train]')"


def _cluster(recipe: Recipe) -> Iterator[str]:
    cluster = recipe.cluster
    if cluster.ray_address is not None and not cluster.ray_address.rpartition(":")[2].isdigit():
        yield f"cluster.ray_address: {cluster.ray_address!r} is no host:port"
    if cluster.nodes == 1:
        return
    if cluster.ray_address is None:
        yield f"cluster.nodes = {cluster.nodes} needs a Ray cluster: set cluster.ray_address (--ray-address host:port)"
    if recipe.nats_url is None:
        yield "several machines need a NATS server that all of them reach: set nats_url (the run's own is on loopback)"
    if recipe.server.tls is None or recipe.channel.tls is None:
        yield "several machines talk over a network: set server.tls and channel.tls (docs/security.md)"
    if cluster.interface.startswith("127."):
        yield "several machines need cluster.interface, the beginning of their private addresses, such as '10.1.'"


def _listening(recipe: Recipe, ports: bool) -> Iterator[str]:
    sections = {
        "generation": (recipe.generation.listen, recipe.generation.replicas),
        "reward": (recipe.reward.listen, recipe.reward.replicas),
        "reference": (recipe.reference.listen, recipe.reference.replicas),
        "critic": (recipe.critic.listen, 1),
    }
    wanted: dict[str, str] = {}
    for name, (listen, replicas) in sections.items():
        if listen is not None and not listen.endswith(":0"):
            if replicas > 1:
                yield f"{name}.listen gives {replicas} replicas one port: leave it out, or set {name}.replicas = 1"
            wanted[f"{name}.listen"] = listen
    if not recipe.server.listen.endswith(":0"):
        yield "server.listen gives every service one port: end it in :0, and set generation.listen and the like"
    if not (recipe.server.metrics_listen or ":0").endswith(":0"):
        yield "server.metrics_listen gives every service one port: end it in :0"
    if recipe.nats_port:
        wanted["nats_port"] = f"127.0.0.1:{recipe.nats_port}"
    taken: dict[str, str] = {}
    for name, address in wanted.items():
        if address in taken:
            yield f"{name} and {taken[address]} are both {address}: give each its own port"
        taken[address] = name
        host, _, port = address.rpartition(":")
        if not port.isdigit():
            yield f"{name}: {address!r} is no host:port"
        elif ports and busy(host.strip("[]"), int(port)):
            yield f"{name}: {address} is in use: stop what listens there, choose another port, or 0 for a free one"


def busy(host: str, port: int) -> bool:
    """Whether something listens on a port of this machine."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return True
    return False


def memory_faults(plan: Plan) -> Iterator[str]:
    """Whether the processes fit into this machine's memory."""
    needed = sum(process.memory_mb for process in plan.processes) + memory.RAY_MB
    free = memory.available_mb()
    if needed > free:
        largest = sorted(plan.processes, key=lambda process: -process.memory_mb)[:3]
        named = ", ".join(f"{process.name} {process.memory_mb / 1024:.1f}" for process in largest)
        yield (
            f"the run needs about {needed / 1024:.1f} GiB of memory and {free / 1024:.1f} are free (most of it: "
            f"{named}): choose a smaller model, lower generation.kv_cache_mb or micro_batch_tokens, use bfloat16 or "
            "LoRA, or share states over ranks (zero_stage)"
        )


def gpu_faults(cluster: MachinesSection, plan: Plan, gpus: int | None) -> Iterator[str]:
    """Whether there are enough GPUs, and each holds what it is to hold."""
    needed = sum(shares(plan.processes).values())
    if not needed:
        return
    promised = cluster.nodes * cluster.gpus_per_node
    there = promised if gpus is None else gpus
    if needed > there:
        have = f"cluster.nodes x cluster.gpus_per_node = {promised}" if gpus is None else f"Ray sees {gpus}"
        roles = ", ".join(f"{service} {count}" for service, count in _gpus_by_service(plan.processes).items())
        sharing = f"; cluster.colocate = {cluster.colocate!r}" if isinstance(cluster, ClusterSection) else ""
        mend = "lower ranks or replicas, or share GPUs (cluster.colocate)" if sharing else "lower learner.ranks"
        yield f"the run needs {needed} GPUs ({roles}{sharing}) and {have}: {mend}"
    if cluster.gpu_memory_gb is None:
        return
    for share, members in _sharing(plan.processes).items():
        need = sum(process.gpu_memory_gb for process in members)
        if need > cluster.gpu_memory_gb * GPU_MEMORY_USABLE:
            parts = ", ".join(f"{process.name} {process.gpu_memory_gb:.0f}" for process in members)
            yield (
                f"GPU {share} of {cluster.gpu_memory_gb:.0f} GB would have to hold {need:.0f} GB ({parts}): use more "
                "ranks, zero_stage = 3, adam_offload, LoRA, gradient_checkpointing, a smaller micro_batch_tokens or "
                "generation.gpu_memory_utilization, or share less (cluster.colocate)"
            )


def _tensor_parallel(recipe: Recipe, plan: Plan) -> Iterator[str]:
    width, there = recipe.generation.tensor_parallel, recipe.cluster.gpus_per_node
    if shares(plan.processes) and there and width > there:
        yield f"generation.tensor_parallel = {width} does not fit on one machine of {there} GPUs"


def _gpus_by_service(processes: list[ProcessSpec]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for process in processes:
        if process.gpus:
            counts[process.service] = counts.get(process.service, 0) + process.gpus
    return counts


def _sharing(processes: list[ProcessSpec]) -> dict[str, list[ProcessSpec]]:
    """Processes by the first GPU they use."""
    members: dict[str, list[ProcessSpec]] = {}
    for process in processes:
        if process.gpus:
            for gpu in range(process.share_offset, process.share_offset + process.gpus):
                members.setdefault(f"{process.share or process.name}/{gpu}", []).append(process)
    return members
