"""A recipe: everything a person sets about a run, in one file.

It holds the trainer's own settings and one section a service, made of the services' own settings. What
the launcher fills in itself (addresses, folders, ranks) is not part of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from rlctl.bus.config import BusConfig
from rlctl.core.config import Name, StrictConfig
from rlctl.core.errors import NotFoundError
from rlctl.critic.config import CriticSettings
from rlctl.generation.config import EngineConfig
from rlctl.reference.config import ReferenceSettings
from rlctl.reward.config import RewardSettings
from rlctl.rollout.config import RolloutSettings
from rlctl.rpc.config import ChannelConfig, ServerConfig
from rlctl.trainer.config import TrainingSettings

DEFAULT_RECIPE = "quickstart"

#: Settings of shared sections that the launcher knows better, and what a person sets instead.
FILLED_IN = {
    "bus.url": "nats_url",
    "bus.run": "name",
    "server.registry": "nats_url",
    "channel.addresses": "reward.addresses or reference.addresses",
}


class GenerationSection(EngineConfig):
    """Generation replicas."""

    replicas: int = Field(1, ge=1)
    """How many."""
    listen: str | None = None
    """`host:port` instead of a free port (one replica only)."""
    request_timeout_s: float = Field(600.0, gt=0)
    """Longest a request may take, seconds."""


class ReferenceSection(ReferenceSettings):
    """Reference replicas; none are started where `kl.coef` is 0."""

    replicas: int = Field(1, ge=1)
    """How many."""
    listen: str | None = None
    """`host:port` instead of a free port (one replica only)."""
    addresses: list[str] = Field([])
    """Replicas that run already; none are started then."""


class RewardSection(RewardSettings):
    """Reward replicas."""

    replicas: int = Field(1, ge=1)
    """How many."""
    listen: str | None = None
    """`host:port` instead of a free port (one replica only)."""
    addresses: list[str] = Field([])
    """Replicas that run already; none are started then."""


class CriticSection(CriticSettings):
    """The critic; started where `advantage.estimator` is gae."""

    listen: str | None = None
    """`host:port` instead of a free port."""


class RolloutSection(RolloutSettings):
    """Rollout workers."""

    workers: int = Field(1, ge=1)
    """How many."""


class MachinesSection(StrictConfig):
    """Where the processes run, and what happens when one fails."""

    ray_address: str | None = None
    """A Ray cluster to join (`host:port`); `none` starts Ray inside the launcher."""
    interface: str = "127.0.0.1"
    """Address, or start of it (`10.1.`), of the private network that Ray, gloo and NCCL use: they are neither
    authenticated nor encrypted. Loopback keeps everything on this machine."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where models live; auto: on GPUs where Ray sees any."""
    nodes: int = Field(1, ge=1)
    """Machines the plan may count on."""
    gpus_per_node: int = Field(0, ge=0)
    """GPUs of one machine the plan may count on; 0: those of this machine."""
    gpu_memory_gb: float | None = Field(None, gt=0)
    """Memory of one GPU, GB, for the plan; default: that of this machine's first GPU."""
    restarts: int = Field(10, ge=0)
    """Restarts allowed within `restart_window_s`; one more ends the run."""
    restart_window_s: float = Field(600.0, gt=0)
    """Span in which restarts are counted, seconds."""
    stop_timeout_s: float = Field(120.0, gt=0)
    """How long the trainer may take to end its step and commit when the run is stopped, seconds."""


class ClusterSection(MachinesSection):
    """Where the processes of a run of many services run."""

    colocate: Literal["all", "actor_ref", "critic_reward", "none"] = "none"
    """Who shares GPUs: actor and reference; critic and reward models; all of them and generation too; nobody."""


class Recipe(TrainingSettings):
    """A run."""

    name: Name = "run"
    """Name of the run; its folder is `runs_dir/name`."""
    runs_dir: Path = Path("runs")
    """Folder of all runs; on a cluster, storage that every machine sees."""
    model: str = ""
    """Policy: a folder, a hub name, or `rlctl/arithmetic-llama` (built and warmed up on the spot)."""
    generation: GenerationSection = GenerationSection()
    reward: RewardSection = RewardSection()
    reference: ReferenceSection = ReferenceSection()
    critic: CriticSection = CriticSection()
    rollout: RolloutSection = RolloutSection()
    cluster: ClusterSection = ClusterSection()
    nats_url: str | None = None
    """A NATS server of your own; `none` starts one for the run."""
    nats_port: int = Field(0, ge=0, le=65535)
    """Port of the run's own NATS server; 0 takes a free one and keeps it."""
    bus: BusConfig = BusConfig()
    server: ServerConfig = ServerConfig()
    channel: ChannelConfig = ChannelConfig()
    stall_timeout_s: float = Field(1800.0, gt=0)
    """A step whose rollouts take longer ends the trainer with the names of the missing groups, seconds."""

    @model_validator(mode="after")
    def _filled_in_by_the_launcher(self) -> Recipe:
        for name, instead in FILLED_IN.items():
            section, _, key = name.partition(".")
            if key in getattr(self, section).model_fields_set:
                raise ValueError(f"{name} is filled in by the launcher: set {instead} instead")
        if self.nats_url is not None and self.nats_port:
            raise ValueError("nats_port is the port of a server started here: leave it out, or leave nats_url out")
        return self

    @property
    def run_dir(self) -> Path:
        return self.runs_dir / self.name


def recipe_folder() -> Path:
    """Folder of the recipes that come along: in the wheel, or in a checkout."""
    packaged = Path(__file__).with_name("recipes")
    return packaged if packaged.is_dir() else Path(__file__).parents[3] / "deploy" / "recipes"


def find_recipe(name: str, kind: str = "") -> Path:
    """A recipe by the path of its file, or by the name of one that comes along. Raises NotFoundError.

    `kind` is "" for runs of the PPO family, or `offline`.
    """
    path = Path(name)
    if path.suffix in (".toml", ".json") or "/" in name:
        if path.is_file():
            return path
        raise NotFoundError(f"no recipe {name}: no such file. {_known(kind)}")
    shipped = recipe_folder() / kind / f"{name}.toml"
    if shipped.is_file():
        return shipped
    raise NotFoundError(f"no recipe {name!r}. {_known(kind)}")


def recipe_names(kind: str = "") -> list[str]:
    return sorted(path.stem for path in (recipe_folder() / kind).glob("*.toml"))


def _known(kind: str) -> str:
    return f"Give the path of a .toml file, or one of: {', '.join(recipe_names(kind)) or '(none found)'}."
