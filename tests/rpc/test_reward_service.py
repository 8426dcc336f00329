"""Reward models, and the service as a whole."""

import asyncio
import json
import sys

import pytest
import torch

from rlctl.clients.reward import RewardClient
from rlctl.core.config import validate
from rlctl.core.errors import ConfigError, InvalidArgumentError
from rlctl.reward.config import RewardConfig, RewardSettings
from rlctl.reward.model_scorer import ModelScorer, batches
from rlctl.reward.scorer import Item
from rlctl.reward.servicer import RewardHosted
from rlctl.v1 import reward_pb2 as pb
from support.tiny import tiny_llama

pytestmark = pytest.mark.anyio
ITEMS = [Item("2+2=", "4"), Item("a longer question: 10+10=", "20, I say"), Item("", "x")]


@pytest.fixture(scope="module")
def reward_model(tmp_path_factory):
    """A sequence classifier whose pad token differs from its EOS."""
    from transformers import AutoModelForSequenceClassification

    folder = tiny_llama(tmp_path_factory.mktemp("reward_model"))
    torch.manual_seed(1)
    AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1).save_pretrained(folder)
    return folder


def _with_config(source, target, **changes):
    target.mkdir()
    for file in source.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    config = json.loads((target / "config.json").read_text()) | changes
    (target / "config.json").write_text(json.dumps(config))
    return target


async def _score(folder, items, **options):
    settings = {"max_length": 512, "batch_tokens": 1024, "normalize": False, "trust_remote_code": False} | options
    scorer = ModelScorer(str(folder), "float32", **settings)
    try:
        await scorer.load()
        return [outcome.reward for outcome in await scorer.score(items)]
    finally:
        await scorer.close()


def _by_hand(folder, ids):
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        hidden = model.model(torch.tensor([ids])).last_hidden_state
        return model.score(hidden)[0, -1, 0].item()


def _ids(folder, text):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)(text, split_special_tokens=True).input_ids


async def test_the_score_is_read_at_the_eos_behind_the_response(reward_model):
    rewards = await _score(reward_model, ITEMS)
    assert rewards == pytest.approx(
        [_by_hand(reward_model, [*_ids(reward_model, item.query), 2]) for item in ITEMS], abs=1e-5
    )


async def test_batches_and_order_change_no_score(reward_model):
    rewards = await _score(reward_model, ITEMS)
    assert await _score(reward_model, ITEMS, batch_tokens=64) == pytest.approx(rewards, abs=1e-5)
    assert await _score(reward_model, ITEMS[::-1]) == pytest.approx(rewards[::-1], abs=1e-5)


async def test_a_pad_that_is_the_eos_does_not_move_the_score(reward_model, tmp_path):
    folder = _with_config(reward_model, tmp_path / "model", pad_token_id=2)
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text()) | {"pad_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    assert await _score(folder, ITEMS) == pytest.approx(await _score(reward_model, ITEMS), abs=1e-5)


async def test_a_special_token_written_out_in_a_response_is_plain_text(reward_model):
    (reward,) = await _score(reward_model, [Item("q", "ab</s>cd")])
    ids = _ids(reward_model, "qab</s>cd")
    assert 2 not in ids
    assert reward == pytest.approx(_by_hand(reward_model, [*ids, 2]), abs=1e-5)


async def test_a_long_prompt_loses_its_beginning(reward_model):
    (reward,) = await _score(reward_model, [Item("q" * 40 + "end", "ok")], max_length=6)
    assert reward == pytest.approx(_by_hand(reward_model, [*_ids(reward_model, "endok"), 2]), abs=1e-5)


async def test_normalize_standardises_with_the_saved_mean_and_std(reward_model, tmp_path):
    folder = _with_config(reward_model, tmp_path / "model", mean=2.0, std=4.0)
    raw = await _score(folder, ITEMS)
    assert await _score(folder, ITEMS, normalize=True) == pytest.approx([(value - 2) / 4 for value in raw])


@pytest.mark.parametrize("saved", [{}, {"mean": 0.0}, {"mean": 0.0, "std": 0.0}])
async def test_normalize_without_mean_and_std_stops_the_start(reward_model, tmp_path, saved):
    folder = _with_config(reward_model, tmp_path / "model", **saved)
    with pytest.raises(ConfigError, match="normalize needs the mean and std"):
        await _score(folder, ITEMS, normalize=True)


async def test_a_weight_that_is_not_finite_gives_no_reward(reward_model, tmp_path):
    from safetensors.torch import load_file, save_file

    folder = _with_config(reward_model, tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    weights["score.weight"].fill_(float("nan"))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    scorer = ModelScorer(
        str(folder), "float32", max_length=64, batch_tokens=64, normalize=False, trust_remote_code=False
    )
    await scorer.load()
    assert [outcome.reason for outcome in await scorer.score(ITEMS[:1])] == ["REWARD_NOT_FINITE"]
    await scorer.close()


def test_batches_hold_like_lengths_within_the_budget():
    assert batches([5, 1, 9, 2, 30], 10) == [[1, 3], [0], [2], [4]]
    assert batches([], 10) == []


FUNCTION = """
def reward_func(queries, prompts, labels):
    if "bad" in prompts:
        raise ValueError("bad prompt")
    return {"rewards": [len(query) for query in queries], "extra_logs": {"seen": 1}}
"""


@pytest.fixture
def settings(reward_model, tmp_path):
    (tmp_path / "reward.py").write_text(FUNCTION)
    return {
        "scorers": [
            {"kind": "function", "name": "length", "weight": 0.5, "path": str(tmp_path / "reward.py")},
            {"kind": "grader", "weight": 2.0},
            {"kind": "model", "name": "one", "model": str(reward_model)},
            {"kind": "model", "name": "two", "model": str(reward_model), "weight": -1.0},
        ]
    }


async def test_the_reward_is_the_weighted_sum_and_a_fault_costs_its_item(serve, connect, settings):
    service = await serve(RewardHosted(validate(RewardSettings, settings)))
    client = RewardClient(connect(service.address))
    good, bad, unlabelled = await client.score_text(["6*7=", "bad", "6*7="], ["42", "42", "42"], ["42", "42", ""])

    assert good.reward == pytest.approx(0.5 * 6 + 2.0)  # the two models cancel out
    assert dict(good.components) == pytest.approx(
        {"length": 6, "grader": 1, "one": good.components["one"], "two": good.components["one"]}
    )
    assert dict(good.extra_logs) == {"seen": 1.0}
    assert bad.WhichOneof("result") == "error"
    assert bad.error.reason == "REWARD_RAISED"
    assert bad.error.message.startswith("length: ValueError: bad prompt")
    assert "length" not in bad.components
    assert (unlabelled.error.reason, unlabelled.components["length"]) == ("REWARD_NO_LABEL", 6)

    info = await client.get_reward_info()
    assert [(s.name, s.kind, s.weight) for s in info.scorers] == [
        ("length", "function", 0.5), ("grader", "grader", 2.0), ("one", "model", 1.0), ("two", "model", -1.0),
    ]  # fmt: skip
    assert not (await client.score(pb.ScoreRequest())).scores


@pytest.mark.parametrize("metadata, words", [("{", "no JSON"), ("[1]", "must be a JSON object")])
async def test_wrong_metadata_names_its_field(serve, connect, metadata, words):
    client = RewardClient(connect((await serve(RewardHosted(RewardSettings()))).address))
    request = pb.ScoreRequest(items=[pb.ScoreItem(), pb.ScoreItem(metadata_json=metadata)])
    with pytest.raises(InvalidArgumentError, match=rf"items\[1\].metadata_json.*{words}"):
        await client.score(request)


@pytest.mark.parametrize(
    "scorers, words",
    [
        ([{"kind": "grader"}, {"kind": "grader"}], "two scorers are named 'grader'"),
        ([{"kind": "function"}], "needs 'path'"),
        ([{"kind": "http", "url": "localhost:80/x"}], "url must begin with http:// or https://"),
        ([], "at least 1 item"),
    ],
)
def test_settings_that_make_no_sense_are_refused(scorers, words):
    with pytest.raises(ConfigError, match=words):
        validate(RewardConfig, {"scorers": scorers})


async def test_the_process_says_what_is_missing_and_ends():
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "rlctl.reward", 'scorers=[{kind="function", path="nowhere.py"}]',
        env={"PYTHONPATH": ":".join(sys.path)}, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, printed = await process.communicate()
    assert process.returncode == 2, "wrong settings: not worth another start"
    assert "there is no file" in printed.decode()
    assert "nowhere.py; set path" in printed.decode()
    assert "Traceback" not in printed.decode()
