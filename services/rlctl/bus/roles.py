"""What each kind of process may do on NATS.

admin     everything (launcher, operators)
trainer   writes prompts, takes rollouts, owns streams, fence and registry entries
worker    takes prompts, writes rollouts, and sees whether a group exists
service   registers itself and sees who else is there (generation, reward, reference, critic, evaluator, clients)
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any, Literal, get_args

from rlctl.bus.ids import bucket_name, encode_name, stream_name

Role = Literal["admin", "trainer", "worker", "service"]


def permissions(role: Role, run: str) -> dict[str, Any]:
    """Permissions of a role, as nats-server takes them. Replies go to an inbox of the role's own."""
    publish = {"admin": [">"], "trainer": _trainer(run), "worker": _worker(run), "service": _service(run)}[role]
    if role == "admin":
        return {"publish": publish, "subscribe": [">"]}
    return {"publish": publish, "subscribe": [f"_INBOX.{role}.>", f"$KV.{bucket_name(run, 'registry')}.>"]}


def _service(run: str) -> list[str]:
    bucket = bucket_name(run, "registry")
    return [f"$KV.{bucket}.>", *_stream_api(f"KV_{bucket}", "CREATE", "UPDATE", "INFO", "MSG.GET")]


def _worker(run: str) -> list[str]:
    prompts, rollouts = stream_name(run, "prompts"), stream_name(run, "rollouts")
    return [
        *_service(run),
        f"rlctl.{encode_name(run)}.rollouts.>",
        *_stream_api(prompts, "INFO"),
        *_stream_api(rollouts, "INFO"),
        f"$JS.API.CONSUMER.CREATE.{prompts}.workers",
        f"$JS.API.CONSUMER.MSG.NEXT.{prompts}.workers",
        f"$JS.ACK.{prompts}.workers.>",
    ]


def _trainer(run: str) -> list[str]:
    prompts, rollouts = stream_name(run, "prompts"), stream_name(run, "rollouts")
    fence = bucket_name(run, "fence")
    return [
        *_service(run),
        f"rlctl.{encode_name(run)}.prompts.>",
        f"$KV.{fence}.>",
        *_stream_api(f"KV_{fence}", "CREATE", "UPDATE", "INFO", "MSG.GET"),
        *_stream_api(prompts, "CREATE", "UPDATE", "INFO", "PURGE"),
        *_stream_api(rollouts, "CREATE", "UPDATE", "INFO", "MSG.GET", "MSG.DELETE"),
        f"$JS.API.CONSUMER.*.{rollouts}.>",
        f"$JS.API.CONSUMER.NAMES.{rollouts}",
        f"$JS.API.CONSUMER.MSG.NEXT.{rollouts}.>",
        f"$JS.ACK.{rollouts}.>",
    ]


def _stream_api(stream: str, *calls: str) -> list[str]:
    return [f"$JS.API.STREAM.{call}.{stream}" for call in calls]


def make_passwords(folder: Path) -> dict[Role, Path]:
    """A random password for each role, in files that only their owner may read; existing ones are kept."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    files: dict[Role, Path] = {}
    for role in get_args(Role):
        path = folder / f"{role}.password"
        if not path.exists():
            path.touch(mode=0o600)
            path.write_text(secrets.token_urlsafe(32), encoding="utf-8")
        files[role] = path
    return files
