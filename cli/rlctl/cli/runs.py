"""Options that several commands share: which run, or which address."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rlctl.bus.config import BusConfig
    from rlctl.launch.run_folder import RunFolder
    from rlctl.rpc.config import ChannelConfig

RunsDir = Annotated[Path, typer.Option(help="Folder of all runs.")]
Address = Annotated[str | None, typer.Option(help="host:port of the service, instead of a run's.")]
TokenFile = Annotated[Path | None, typer.Option(help="File with the bearer token (also read from RLCTL_TOKEN).")]
Ca = Annotated[Path | None, typer.Option(help="Authority of the service's TLS certificate.")]


def run_folder(name: str, runs_dir: Path) -> RunFolder:
    """The folder of a run by its name, or by its path. Raises NotFoundError."""
    folder = _folder(name, runs_dir)
    folder.require()
    return folder


def _folder(name: str, runs_dir: Path) -> RunFolder:
    from rlctl.launch.run_folder import RunFolder

    path = Path(name)
    return RunFolder(path if path.is_dir() and (path / "recipe.toml").is_file() else runs_dir / name)


def refuse_chain(folder: RunFolder) -> None:
    """Raises FailedPreconditionError for a chain, where one of its stages is meant."""
    from rlctl.core.errors import FailedPreconditionError

    if folder.job == "chain":
        path = folder.path
        raise FailedPreconditionError(f"{path} is a chain: name one of its stages, {path}/sft, rm, ppo or dpo")


def reach(
    run: str | None, address: str | None, runs_dir: Path, token_file: Path | None, ca: Path | None
) -> tuple[ChannelConfig, BusConfig | None]:
    """How to reach a service: by its address, or through the registry of a run that is up.

    Raises InvalidArgumentError and FailedPreconditionError.
    """
    from rlctl.core.errors import FailedPreconditionError, InvalidArgumentError
    from rlctl.rpc.config import ChannelConfig, TLSConfig

    tls = TLSConfig(ca=ca) if ca is not None else None
    if address is not None:
        return ChannelConfig(addresses=[address], token_file=token_file, tls=tls, ready_timeout_s=20.0), None
    if run is None:
        raise InvalidArgumentError("name a run that is up (--run NAME), or an address (--address host:port)")
    folder = run_folder(run, runs_dir)
    launch = folder.launch()
    if launch is None or not folder.is_up():
        raise FailedPreconditionError(f"run {run!r} is not up: launch it, or give the --address of a service")
    return folder.recipe().channel, run_bus(folder)


def model_of(target: str | None, runs_dir: Path) -> Path | None:
    """The folder of a model to be loaded for the purpose, by the name of a run, a folder or a hub name; None where a
    run serves it already. Raises RlctlError."""
    from rlctl.core.errors import FailedPreconditionError, InvalidArgumentError
    from rlctl.models.source import resolve

    if target is None:
        raise InvalidArgumentError("name a run, a model's folder or a hub name, or give an --address")
    folder = _folder(target, runs_dir)
    if not folder.exists:
        return resolve(target)
    refuse_chain(folder)
    if folder.is_up():
        return None
    model = folder.path / "model"
    if not model.is_dir():
        raise FailedPreconditionError(
            f"run {target!r} has no finished model yet: finish it, or `rlctl export {target} DIR` its last checkpoint"
        )
    return model


def run_bus(folder: RunFolder) -> BusConfig:
    """How to reach the NATS server of a run."""
    from rlctl.bus.config import BusConfig

    recipe, launch = folder.recipe(), folder.launch()
    assert launch is not None
    settings = recipe.bus.model_dump(exclude={"url", "run"})
    return BusConfig.model_validate(settings | {"url": launch.nats_url, "run": recipe.name, "connect_timeout_s": 5.0})
