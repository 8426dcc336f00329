"""An OpenRLHF command line, read as its own parser reads it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rlctl.core.errors import ConfigError
from rlctl.migrate.names import classic

COMMANDS = ("train_sft", "train_rm", "train_dpo", "train_kto", "train_kd", "train_prm", "train_ppo_ray")


@dataclass(frozen=True)
class Flag:
    """A flag with its values."""

    written: str
    """As it was given, with the dashes."""
    values: list[str]

    def text(self) -> str:
        """Its one value."""
        if len(self.values) != 1:
            raise ConfigError(f"{self.written} takes one value, not {len(self.values)}: {' '.join(self.values)}")
        return self.values[0]

    def number(self) -> float:
        return self.numbers(1)[0]

    def integer(self) -> int:
        return int(self.number())

    def numbers(self, count: int) -> list[float]:
        """Its values as `count` numbers."""
        try:
            found = [float(value) for value in self.values]
        except ValueError:
            found = []
        if len(found) != count:
            wanted = "a number" if count == 1 else f"{count} numbers"
            raise ConfigError(f"{self.written} takes {wanted}, not {' '.join(self.values) or 'nothing'}")
        return found


@dataclass(frozen=True)
class CommandLine:
    """Which command, its flags by their classic names (`--ds.zero_stage` is `zero_stage`), and how it was started."""

    command: str
    flags: dict[str, Flag]
    processes: int | None
    """Processes that deepspeed or torchrun was told to start on a machine."""

    def text(self, name: str, default: str = "") -> str:
        return self.flags[name].text() if name in self.flags else default

    def number(self, name: str, default: float) -> float:
        return self.flags[name].number() if name in self.flags else default

    def integer(self, name: str, default: int) -> int:
        return self.flags[name].integer() if name in self.flags else default

    def written(self, name: str) -> str:
        return self.flags[name].written


def read(words: Sequence[str]) -> CommandLine:
    """Reads the words of a shell command. Raises ConfigError where no command of OpenRLHF is in it."""
    words = [word for word in words if word.strip() not in ("", "\\")]
    place, command = _command(words)
    flags: dict[str, Flag] = {}
    written = ""
    values: list[str] = []
    for word in [*words[place + 1 :], "--"]:
        if not word.startswith("--"):
            if not written:
                raise ConfigError(f"{word!r} stands before the first flag of {command}")
            values.append(word)
            continue
        if written:
            flags[classic(written[2:])] = Flag(written, values)
        written, equals, value = word.partition("=")
        values = [value] if equals else []
    return CommandLine(command, flags, _processes(words[:place]))


def _command(words: Sequence[str]) -> tuple[int, str]:
    for place, word in enumerate(words):
        name = re.sub(r"\.py$", "", word).replace("\\", "/").rsplit("/", 1)[-1].rsplit(".", 1)[-1]
        if name in COMMANDS:
            return place, name
        if name == "train_ppo":
            raise ConfigError("train_ppo (without Ray) is older than OpenRLHF 0.6: give the train_ppo_ray command line")
    raise ConfigError(
        "this is no OpenRLHF command line: write rlctl migrate -- python -m openrlhf.cli.COMMAND FLAGS, where COMMAND "
        f"is one of {', '.join(COMMANDS)}"
    )


def _processes(words: Sequence[str]) -> int | None:
    """`--num_gpus 8` of deepspeed, `--nproc-per-node=8` of torchrun."""
    text = " ".join(words)
    found = re.search(r"--(?:num_gpus|nproc[-_]per[-_]node)[ =](\d+)", text)
    return int(found[1]) if found else None
