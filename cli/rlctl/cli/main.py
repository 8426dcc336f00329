"""`rlctl`: the commands are registered here, each lives in a module of its own.

Those modules import what they need inside their functions, and help is plain text (rich takes longer to import
than all the rest), so that `rlctl --help` answers at once.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from rlctl.cli import (
    chat,
    data,
    export,
    generate,
    launch,
    logs,
    lora,
    migrate,
    replay,
    score,
    serve,
    settings,
    status,
    stop,
)
from rlctl.cli import eval as evaluation
from rlctl.core.errors import InvalidArgumentError, NotFoundError, RlctlError

ORDER = (
    "launch", "status", "logs", "stop", "chat", "generate", "score", "eval", "data", "export", "lora",
    "replay", "serve", "migrate", "settings",
)  # fmt: skip


class _Ordered(TyperGroup):
    """Lists the commands in the order in which a person meets them."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))


app = typer.Typer(
    name="rlctl",
    cls=_Ordered,
    rich_markup_mode=None,
    help="RLHF as services: train a language model by reinforcement learning, and look after the run.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(launch.app, name="launch", help="Train: validate a recipe, start every service, watch, end in order.")
app.command("status")(status.status)
app.command("logs")(logs.logs)
app.command("stop")(stop.stop)
app.command("generate")(generate.generate)
app.command("score")(score.score)
app.command("chat")(chat.chat)
app.command("export")(export.export)
app.add_typer(lora.app, name="lora", help="Adapters: merge one into its base.")
app.command("replay")(replay.replay)
app.command("serve", context_settings={"ignore_unknown_options": True})(serve.serve)
app.command("eval")(evaluation.evaluate)
app.add_typer(data.app, name="data", help="Look at data as the model will see it.")
app.command("migrate", context_settings={"ignore_unknown_options": True})(migrate.migrate)
app.command("settings")(settings.settings)


def main() -> None:
    """An error raised on purpose is told in its own words; exit code 2 where the caller can mend it, else 1."""
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    try:
        app()
    except RlctlError as error:
        sys.stderr.write(f"error: {error.message}\n")
        sys.exit(2 if isinstance(error, InvalidArgumentError | NotFoundError) else 1)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "rlctl"):
            raise
        extra = "evaluator" if sys.argv[1:2] == ["eval"] else "train,cpu"
        sys.stderr.write(
            f"error: this command needs the package {package!r}, which is not installed here: install rlctl with the "
            f"extra it belongs to, for example pip install '.[{extra}]'\n"
        )
        sys.exit(1)


if __name__ == "__main__":
    main()
