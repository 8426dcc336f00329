"""Everything that can be found wrong with a run before a process is started, each with the mend in words."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

from rlctl.core.errors import ConfigError
from rlctl.launch import memory
from rlctl.launch.machine_checks import busy, gpu_faults, library_faults, memory_faults
from rlctl.launch.recipe import Recipe
from rlctl.launch.source_checks import data_faults, missing_files, model_faults
from rlctl.launch.spec import Plan, shares
from rlctl.rpc.config import TLSConfig

#: Bytes a token takes in a rollout message: id, log-prob, reference log-prob, and its text.
RESPONSE_TOKEN_BYTES = 3 + 4 + 4 + 8
PROMPT_TOKEN_BYTES = 3 + 8
SAMPLE_BYTES = 512
GROUP_BYTES = 65_536


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


def _tensor_parallel(recipe: Recipe, plan: Plan) -> Iterator[str]:
    width, there = recipe.generation.tensor_parallel, recipe.cluster.gpus_per_node
    if shares(plan.processes) and there and width > there:
        yield f"generation.tensor_parallel = {width} does not fit on one machine of {there} GPUs"
