"""Settings of `rlctl eval` and of the evaluator service."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field, model_validator

from rlctl.core.config import StrictConfig
from rlctl.rpc.config import ServerConfig


class _Finite(StrictConfig):
    """Numbers are numbers: neither infinite nor NaN."""

    model_config = ConfigDict(allow_inf_nan=False)


class PriceConfig(_Finite):
    """What a judge costs, US dollars per million tokens."""

    input_hit: float = Field(ge=0)
    """Prompt tokens found in the provider's cache."""
    input_miss: float = Field(ge=0)
    """Prompt tokens not in the cache."""
    output: float = Field(ge=0)
    """Tokens written, thinking included."""


class JudgeConfig(_Finite):
    """One judge: a model behind an OpenAI-compatible API."""

    preset: Literal["deepseek", "openai", "local", "rules"] = "deepseek"
    """Where the judge lives; fills in what is left empty below. `rules` asks no model at all."""
    name: str = ""
    """Name in the report; default: the preset."""
    model: str = ""
    """Model to ask for; default: the preset's."""
    base_url: str = ""
    """Address of the API, `http://` or `https://`, without any key; default: the preset's."""
    api_key_env: str = ""
    """Name of the environment variable with the key; default: the preset's."""
    temperature: float | None = Field(None, ge=0, le=2)
    """Sampling temperature; default: 0, and nothing is sent to models that refuse any (OpenAI's reasoning models)."""
    max_tokens: int = Field(1024, ge=16)
    """Most tokens of a reply; doubled once when a reply was cut."""
    thinking: bool = False
    """Let the judge think before it answers (DeepSeek, OpenAI's reasoning models); needs more `max_tokens`."""
    json_mode: bool = True
    """Ask for `response_format = json_object`."""
    extra_body: dict[str, Any] = {}
    """Further fields of the request's body."""
    price: PriceConfig | None = None
    """Prices; default: the built-in table, by model."""

    @model_validator(mode="after")
    def _without_key(self) -> JudgeConfig:
        """A check of the whole: an error about one field would show its value, which may be a key."""
        parts = urlsplit(self.base_url)
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ValueError("base_url holds only the address; a key belongs into the environment (api_key_env)")
        if self.base_url and (parts.scheme not in ("http", "https") or not parts.hostname):
            raise ValueError("base_url must begin with http:// or https:// and name a host")
        if not re.fullmatch(r"[A-Za-z_0-9]*", self.api_key_env):
            raise ValueError("api_key_env is the name of an environment variable, not the key")
        return self


class PairingConfig(_Finite):
    """How outputs are made before they are judged (`rlctl eval --model`)."""

    model: str = ""
    """Folder or hub name of the model, as the generation service serves it; empty: judge what lies in `outputs`."""
    addresses: list[str] = []
    """`host:port` of the generation replicas."""
    samples: int = Field(1, ge=1)
    """Outputs for each prompt."""
    temperature: float = Field(0.7, ge=0)
    """Sampling temperature."""
    max_tokens: int = Field(1024, ge=1)
    """Most tokens of an output."""
    template: Path | None = None
    """Text with `{a}` and `{b}` that makes one prompt of two problems; in single mode with `{question}`."""
    language: Literal["zh", "en"] = "zh"
    """Language of the built-in template and of the gold questions that are asked."""
    timeout_s: float = Field(600.0, gt=0)
    """Longest a generation may take, seconds."""


class EvaluatorConfig(_Finite):
    """One evaluation."""

    mode: Literal["pair", "single"] = "pair"
    """`pair`: two problems a prompt, judged by a model; `single`: one problem, by rules (accuracy, pass@k)."""
    outputs: Path = Path("outputs")
    """Folder with the `.jsonl` files to judge; each file is one data set."""
    gold: str = "meta-math/GSM8K_zh"
    """Gold answers: a json, jsonl or parquet file, the name of a hub data set, or `task:NAME` (reasoning-gym)."""
    gold_split: str = ""
    """Only gold rows with this value in their `split` column; empty: all."""
    max_samples: int = Field(100, ge=1)
    """Most records judged of each data set."""
    judges: list[JudgeConfig] = [JudgeConfig()]
    """Who judges; with several a majority decides and their agreement is reported."""
    prompt_template: Path | None = None
    """TOML file with one's own judging prompt and reply schema."""
    swap_check: bool = False
    """Ask every judge a second time with the two problems listed the other way round."""
    concurrency: int = Field(16, ge=1, le=1024)
    """Calls in flight at once."""
    call_timeout_s: float = Field(120.0, gt=0)
    """Total deadline of one call, blank keep-alive lines or not, seconds."""
    max_tries: int = Field(8, ge=1)
    """Tries of one call when the API is busy or cannot be reached."""
    parse_tries: int = Field(3, ge=1)
    """Times a judge is asked again when its reply cannot be read."""
    max_wait_s: float = Field(60.0, gt=0)
    """Longest pause between two tries, seconds."""
    max_cost: float | None = Field(None, gt=0)
    """Stop before the cost passes this, US dollars, earlier runs in the same folder included."""
    dry_run: bool = False
    """Tell how many calls would be made and about what they would cost; make none."""
    output_dir: Path = Path("evaluation")
    """Where report and journal are written."""
    language: Literal["zh", "en"] = "en"
    """Language of the report; the chart falls back to English where no Chinese font is installed."""
    chart: list[str] = Field(
        ["distinguishes", "switches", "both_right", "both_right_given_switch", "both_right_given_no_switch"],
        min_length=1,
    )
    """Which measures the chart draws in pair mode, also those that a template of one's own adds."""
    seed: int = Field(0, ge=0, lt=2**31)
    """Seed of the bootstrap and of the pairing of problems."""
    bootstrap: int = Field(2000, ge=100, le=100_000)
    """Resamples of the bootstrap intervals."""
    pass_k: list[Annotated[int, Field(ge=1)]] = [1]
    """Values of k for pass@k in single mode."""
    answer_keys: list[str] = ["answer", "answer_only", "label", "gold"]
    """Columns that may hold the gold answer in single mode, first present wins."""
    generate: PairingConfig = PairingConfig()
    """Making outputs first."""

    @model_validator(mode="after")
    def _distinct(self) -> EvaluatorConfig:
        if not self.judges:
            raise ValueError("name at least one judge")
        names = [judge.name or judge.preset for judge in self.judges]
        if len(set(names)) != len(names):
            raise ValueError(f"judges need different names, not {names}; set judges[].name")
        if "rules" in [judge.preset for judge in self.judges] and len(self.judges) > 1:
            raise ValueError("the judge 'rules' stands alone: its verdicts are in every report anyway")
        return self


class EvaluatorServiceConfig(StrictConfig):
    """The evaluator as a process."""

    server: ServerConfig = ServerConfig()
    state_dir: Path = Path("evaluations")
    """Folder with one folder an evaluation: settings, journal and report."""
    max_running: int = Field(4, ge=1)
    """Evaluations at once; more wait their turn."""
