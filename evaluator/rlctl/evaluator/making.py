"""Makes the outputs to judge: prompts from gold questions, answers from a generation service.

In pair mode a seeded shuffle of the gold problems is cut into pairs, each becomes one prompt. What was generated
before in the same folder is not generated again.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rlctl.clients.generation import GenerationClient, text_request
from rlctl.core.errors import ConfigError
from rlctl.evaluator import tasks
from rlctl.evaluator.asking import Progress
from rlctl.evaluator.config import EvaluatorConfig
from rlctl.evaluator.gold import GoldItem
from rlctl.evaluator.records import digest, lines
from rlctl.evaluator.single import gold_items
from rlctl.rpc.config import ChannelConfig
from rlctl.rpc.pool import Pool
from rlctl.v1.generation_pb2 import SamplingParams

PAIR_TEMPLATES = {
    "zh": "请同时解决下面两个问题。思考时可以在两个问题之间自由切换；思考写在 <think> 和 </think> 之间，"
    "然后用“最终答案：A=…，B=…”给出两个答案。\n\n问题A：{a}\n\n问题B：{b}",
    "en": "Solve both problems at once. You may switch between them while you think; think between <think> and "
    "</think>, then give both answers as 'Final answer: A = ..., B = ...'.\n\nProblem A: {a}\n\nProblem B: {b}",
}
SINGLE_TEMPLATE = "{question}"


def prompts(config: EvaluatorConfig) -> list[dict[str, Any]]:
    """The rows to generate, without their output: at most `max_samples` prompts, each `samples` times."""
    items = gold_items(config)
    template = _template(config)
    rows = _pairs(config, items, template) if config.mode == "pair" else _singles(config, items, template)
    return [{**row, "sample": sample} for row in rows for sample in range(config.generate.samples)]


def _template(config: EvaluatorConfig) -> str:
    path = config.generate.template
    names = ("{a}", "{b}") if config.mode == "pair" else ("{question}",)
    if path is None:
        return PAIR_TEMPLATES[config.generate.language] if config.mode == "pair" else SINGLE_TEMPLATE
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the template {path}: {error}") from error
    missing = [name for name in names if name not in text]
    if missing:
        raise ConfigError(f"{path} lacks {' and '.join(missing)}")
    return text


def _question(item: GoldItem, language: str) -> str:
    """The question in the wanted language where the row has both; Chinese comes first in the gold's columns."""
    return item.questions[0] if language == "zh" else item.questions[-1]


def _pairs(config: EvaluatorConfig, items: Sequence[GoldItem], template: str) -> list[dict[str, Any]]:
    if len(items) < 2:
        raise ConfigError(f"{config.gold} has {len(items)} problem; two are needed for a pair")
    order = list(range(len(items)))
    random.Random(config.seed).shuffle(order)
    pairs = [(items[one], items[other]) for one, other in zip(order[::2], order[1::2], strict=False)]
    language = config.generate.language
    return [
        {
            "prompt": _filled(template, a=_question(a, language), b=_question(b, language)),
            "answer_a": a.answer,
            "answer_b": b.answer,
        }
        for a, b in pairs[: config.max_samples]
    ]  # fmt: skip


def _singles(config: EvaluatorConfig, items: Sequence[GoldItem], template: str) -> list[dict[str, Any]]:
    is_task = config.gold.startswith(tasks.PREFIX)
    order = list(range(len(items)))
    if not is_task:
        random.Random(config.seed).shuffle(order)
    rows = []
    for index in order[: config.max_samples]:
        row: dict[str, Any] = {
            "prompt": _filled(template, question=_question(items[index], config.generate.language)),
            "answer": items[index].answer,
        }
        if is_task:
            row["metadata"] = {"task": config.gold, "size": config.max_samples, "seed": config.seed, "index": index}
        rows.append(row)
    return rows


def _filled(template: str, **values: str) -> str:
    return re.sub(r"\{(a|b|question)\}", lambda found: values.get(found[1], found[0]), template)


async def make_outputs(config: EvaluatorConfig, addresses: list[str], on_progress: Callable[[Progress], None]) -> Path:
    """Generates what is missing; returns the file with all outputs, in the order of the prompts."""
    rows = prompts(config)
    folder = Path(config.output_dir) / "outputs"
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^\w.-]+", "_", config.generate.model.strip("/").rsplit("/", 1)[-1]) or "model"
    target, part = folder / f"{name}.jsonl", folder / f".{name}.part"
    made = _made(part)
    missing = [row for row in rows if _key(config, row) not in made]
    pool = Pool("generation", ChannelConfig(addresses=addresses, timeout_s=config.generate.timeout_s))
    try:
        client, gate = GenerationClient(pool), asyncio.Semaphore(config.concurrency)
        with part.open("a", encoding="utf-8") as file:

            async def one(row: dict[str, Any]) -> None:
                async with gate:
                    output = await _generate(client, config, row)
                made[_key(config, row)] = output
                file.write(json.dumps({"key": _key(config, row), **output}, ensure_ascii=False) + "\n")
                file.flush()
                on_progress(Progress(len(rows) - len(missing) + len(made), len(rows), -1.0, 0.0))

            async with asyncio.TaskGroup() as group:
                for row in missing:
                    group.create_task(one(row))
    finally:
        await pool.close()
    with target.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps({**row, **made[_key(config, row)]}, ensure_ascii=False) + "\n")
    return target


async def _generate(client: GenerationClient, config: EvaluatorConfig, row: dict[str, Any]) -> dict[str, Any]:
    sampling = SamplingParams(
        n=1, temperature=config.generate.temperature, max_tokens=config.generate.max_tokens,
        seed=config.seed + int(digest(row["prompt"], str(row["sample"]))[:7], 16),
    )  # fmt: skip
    request = text_request([("user", row["prompt"])], sampling)
    response = await client.generate(request, timeout_s=config.generate.timeout_s)
    return {"output": response.samples[0].text}


def _key(config: EvaluatorConfig, row: dict[str, Any]) -> str:
    about = config.generate
    return digest(row["prompt"], str(row["sample"]), about.model, str(about.temperature), str(about.max_tokens))[:24]


def _made(path: Path) -> dict[str, dict[str, Any]]:
    """What an earlier run generated; a line cut by a crash is dropped."""
    if not path.exists():
        return {}
    made: dict[str, dict[str, Any]] = {}
    kept = 0
    for _, offset, raw in lines(path):
        try:
            row = json.loads(raw or b"")
        except ValueError:
            break
        made[row.pop("key")] = row
        kept = offset + len(raw or b"") + 1
    with path.open("r+b") as file:
        file.truncate(kept)
    return made
