"""Ray inside the launcher: on one machine, bound to loopback where that is wanted, and no more of it than is needed.

`ray.init` has no settings for this, so parts of Ray are replaced while it starts; where another version of Ray
does not have a part, it starts as usual. What we do without: the API server (`include_dashboard=False` starts it
nevertheless), the autoscaler and the log monitor (our processes write logs of their own) take 0.3 GB and, on two
busy cores, most of the start. Its raylet waits 15 s, and no longer, until its agents have written down their ports,
which on a busy machine is too short for their imports: the ports are written down before. And Ray turns 127.0.0.1
into the machine's outer address, on which it would then listen.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

from rlctl.core.ports import free_port
from rlctl.launch.interruption import interruptible_ray

#: Nothing is sent anywhere, no process of ours is taken for a memory hog, a slow start is waited for.
ENV = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_agent_register_timeout_ms": "120000",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
#: Ray gives its own processes 30 s, which a busy machine may exceed at the first, cold, start.
STARTS = 3
#: Nothing of ours goes through Ray's object store; this is about the least it takes.
OBJECT_STORE_BYTES = 80 * 2**20


class EmbeddedRay:
    """Ray's own processes below this one. Whoever does not know the token cannot talk to them."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._folder = tempfile.mkdtemp(prefix="rlctl-ray-")

    def start(self) -> None:
        for key, value in ENV.items():
            os.environ.setdefault(key, value)
        if "RAY_AUTH_MODE" not in os.environ:
            os.environ["RAY_AUTH_MODE"] = "token"
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
        # Only now: Ray reads how it authenticates when it is imported.
        import ray

        for attempt in range(STARTS):
            try:
                with interruptible_ray(), _bare(free_port(self._address)):
                    ray.init(
                        _node_ip_address=self._address,
                        _temp_dir=self._folder,
                        object_store_memory=OBJECT_STORE_BYTES,
                        include_dashboard=False,
                        log_to_driver=False,
                        logging_level="ERROR",
                    )
                return
            except Exception:
                ray.shutdown()
                if attempt + 1 == STARTS:
                    raise

    def clear(self) -> None:
        """Removes what Ray wrote; call it when its processes are gone."""
        shutil.rmtree(self._folder, ignore_errors=True)


@contextmanager
def _bare(agent_port: int) -> Iterator[None]:
    """Replaces those parts; `agent_port` is where the one agent that workers need will listen."""
    from ray._private import node, parameter, services, utils

    def nothing(*_: Any, **__: Any) -> None:
        return None

    start_raylet = node.Node.start_raylet

    def start_raylet_at_once(self: Any, *args: Any, **kwargs: Any) -> None:
        _write_ports(self._session_dir, self._node_id, agent_port)
        start_raylet(self, *args, **kwargs)

    replaced = [
        (node.Node, "start_api_server", nothing),
        (node.Node, "start_monitor", nothing),
        (node.Node, "start_log_monitor", nothing),
        (node.Node, "start_raylet", start_raylet_at_once),
        (parameter, "RayParams", partial(parameter.RayParams, runtime_env_agent_port=agent_port)),
        (services, "resolve_ip_for_localhost", lambda host: host),
        (utils, "get_dashboard_dependency_error", lambda: ImportError("not wanted")),
    ]
    with ExitStack() as stack:
        for owner, name, instead in replaced:
            if hasattr(owner, name):
                stack.enter_context(patch.object(owner, name, instead))
        yield


def _write_ports(session_dir: str, node_id: str, agent_port: int) -> None:
    """As the agents will do themselves; -1 means that there is none."""
    from ray import _raylet

    names = {
        "METRICS_AGENT_PORT_NAME": -1,
        "METRICS_EXPORT_PORT_NAME": -1,
        "DASHBOARD_AGENT_LISTEN_PORT_NAME": -1,
        "RUNTIME_ENV_AGENT_PORT_NAME": agent_port,
    }
    for name, port in names.items():
        if hasattr(_raylet, name) and hasattr(_raylet, "persist_port"):
            _raylet.persist_port(session_dir, node_id, getattr(_raylet, name), port)
