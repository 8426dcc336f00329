"""Ray, as far as the supervisor needs it: embedded or joined; one actor a process."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlctl.core.errors import UnavailableError
from rlctl.launch import sweep
from rlctl.launch.embedded_ray import EmbeddedRay
from rlctl.launch.interruption import interruptible_ray
from rlctl.launch.recipe import MachinesSection
from rlctl.launch.spec import ProcessSpec

REACH_S = 10.0


@dataclass(frozen=True)
class Exit:
    """How a process ended."""

    code: int
    """Exit status; negative: minus the signal that ended it."""
    seconds: float
    """How long it lived."""
    tail: str = ""
    """End of what it wrote."""
    lost: bool = False
    """Its actor died, so that how it ended is not known."""

    def __str__(self) -> str:
        from signal import Signals

        if self.lost:
            return "was lost with its Ray actor"
        if self.code < 0:
            return f"ended by {Signals(-self.code).name}"
        return f"ended with code {self.code}"


@dataclass
class Running:
    """A process that was started."""

    spec: ProcessSpec
    actor: Any
    reference: Any
    life: int


class Host:
    """Starts and ends processes. Close it, whatever happens."""

    def __init__(self, run_dir: Path, cluster: MachinesSection, launch_id: str) -> None:
        self._run_dir = run_dir.resolve()
        self._cluster = cluster
        self._launch_id = launch_id
        self._actors: dict[str, Any] = {}
        self._placement: Any = None
        self._ray: EmbeddedRay | None = None

    @property
    def embedded(self) -> bool:
        return self._cluster.ray_address is None

    def open(self) -> None:
        """Starts Ray, or joins the cluster. Raises UnavailableError."""
        try:
            if self.embedded:
                interface = self._cluster.interface
                self._ray = EmbeddedRay(interface if _is_address(interface) else "127.0.0.1")
                self._ray.start()
            else:
                import ray

                _reach(str(self._cluster.ray_address))
                with interruptible_ray():
                    ray.init(address=self._cluster.ray_address, log_to_driver=False, logging_level="ERROR")
        except Exception as error:
            where = "inside the launcher" if self.embedded else f"at {self._cluster.ray_address}"
            mend = (
                "Look for a full disk below /tmp, too little memory, or a firewall on loopback."
                if self.embedded
                else "Check the address, and that RAY_AUTH_MODE and the token match."
            )
            raise UnavailableError(f"Ray {where} did not come up: {error}. {mend}") from error

    def gpus(self) -> int:
        """GPUs that Ray sees."""
        import ray

        resources: Any = ray.cluster_resources
        return int(resources().get("GPU", 0))

    def place(self, processes: Sequence[ProcessSpec]) -> None:
        """Reserves the GPUs of all processes, once, before the first is started."""
        if any(process.gpus for process in processes):
            from rlctl.launch.placement import GpuPlacement

            self._placement = GpuPlacement(processes)

    def start(self, group: Sequence[ProcessSpec], life: int) -> list[Running]:
        """Starts the processes of a group at once; `life` counts their starts from 0."""
        import ray

        begins = self._cluster.interface
        places = ray.get([self._actor(spec).address.remote(begins) for spec in group], timeout=120)
        rendezvous = self._rendezvous(group, [address for _, address in places])
        started = []
        for spec, (interface, address) in zip(group, places, strict=True):
            env = dict(spec.env) | rendezvous.get((spec.service, spec.rank), {})
            env["GLOO_SOCKET_IFNAME"] = env["NCCL_SOCKET_IFNAME"] = interface
            env["CUDA_VISIBLE_DEVICES"] = ",".join(self._placement.seat(spec).gpu_ids) if spec.gpus else ""
            env |= sweep.KEEP_ENVIRONMENT
            env[sweep.LAUNCH] = self._launch_id
            env[sweep.PROCESS] = f"{self._launch_id}/{spec.name}"
            actor = self._actor(spec)
            reference = actor.run.remote(
                life,
                ["-m", spec.module],
                spec.config,
                str(self._run_dir / "config" / f"{spec.name}.json"),
                str(self.log_path(spec.name)),
                env,
                os.getcwd(),
                address,
            )
            started.append(Running(spec, actor, reference, life))
        return started

    def log_path(self, name: str) -> Path:
        return self._run_dir / "logs" / f"{name}.log"

    def wait(self, running: Sequence[Running], timeout_s: float) -> list[tuple[Running, Exit]]:
        """Those that have ended, after at most `timeout_s`."""
        import ray

        if not running:
            time.sleep(timeout_s)
            return []
        by_reference = {one.reference: one for one in running}
        done, _ = ray.wait(list(by_reference), num_returns=1, timeout=timeout_s)
        if done:
            done, _ = ray.wait(list(by_reference), num_returns=len(by_reference), timeout=0.05)
        ended = []
        for reference in done:
            one = by_reference[reference]
            try:
                told = ray.get(reference)
                ended.append((one, Exit(told["code"], told["seconds"], told["tail"])))
            except ray.exceptions.RayError as error:
                self._actors.pop(one.spec.name, None)
                ended.append((one, Exit(-9, 0.0, str(error), lost=True)))
        return ended

    def signal(self, running: Running, number: int) -> None:
        running.actor.signal.remote(number)

    def kill(self, running: Sequence[Running], timeout_s: float = 30.0) -> None:
        """Ends processes and all below them, and waits until they are gone."""
        import ray

        for one in running:
            one.actor.kill.remote(one.life)
        references = [one.reference for one in running]
        _, left = ray.wait(references, num_returns=len(references), timeout=timeout_s)
        if left:
            names = ", ".join(one.spec.name for one in running if one.reference in left)
            raise UnavailableError(f"{names}: not gone {timeout_s:.0f} s after the kill")

    def close(self) -> None:
        """Ends Ray if it is ours, and whatever is left of this launch on this machine."""
        import ray

        if self._placement is not None and ray.is_initialized():
            self._placement.close()
        ray.shutdown()
        sweep.sweep(sweep.LAUNCH, self._launch_id)
        if self._ray is not None:
            self._ray.clear()

    def _actor(self, spec: ProcessSpec) -> Any:
        if spec.name not in self._actors:
            import ray
            from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

            from rlctl.launch.process_actor import ProcessActor

            options: dict[str, Any] = {"num_cpus": 0, "max_concurrency": 4, "max_restarts": 0}
            if spec.gpus:
                options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(
                    self._placement.seat(spec).node_id, soft=False
                )
            self._actors[spec.name] = ray.remote(ProcessActor).options(**options).remote(spec.name)
        return self._actors[spec.name]

    def _rendezvous(
        self, group: Sequence[ProcessSpec], addresses: Sequence[str]
    ) -> dict[tuple[str, int], dict[str, str]]:
        """Environment by which the ranks of a process of several ranks find each other; a new port each time."""
        import ray

        found: dict[tuple[str, int], dict[str, str]] = {}
        for first, address in zip(group, addresses, strict=True):
            if first.rank or first.ranks == 1:
                continue
            port = ray.get(self._actor(first).free_port.remote(address), timeout=30)
            for rank in range(first.ranks):
                found[first.service, rank] = {
                    "RANK": str(rank),
                    "WORLD_SIZE": str(first.ranks),
                    "LOCAL_RANK": "0",
                    "MASTER_ADDR": address,
                    "MASTER_PORT": str(port),
                }
        return found


def _reach(address: str) -> None:
    """Ray itself tries for minutes. Raises OSError."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), REACH_S).close()


def _is_address(text: str) -> bool:
    return text.count(".") == 3 and not text.endswith(".")


def watch(launch_id: str) -> Callable[[], None]:
    """Starts the watchdog that ends this launch when the launcher dies; call the result after a clean end."""
    import subprocess
    import sys

    script = str(Path(__file__).with_name("watchdog.py"))
    read, write = os.pipe()
    process = subprocess.Popen([sys.executable, "-I", "-S", script, launch_id], stdin=read, start_new_session=True)
    os.close(read)

    def release() -> None:
        os.close(write)
        process.wait(timeout=30)

    return release
