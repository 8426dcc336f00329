"""What is asked in each stage of a loop, without asking it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlctl.cli.launch import read_loop_recipe
from rlctl.core.errors import ConfigError, FailedPreconditionError
from rlctl.launch.loop_stages import Stages, rewarded
from rlctl.models.load import load_tokenizer
from rlctl.offline.asking import rewards_file
from rlctl.rpc.portal import Portal
from support.tiny import tiny_llama


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny", hidden=32)


@pytest.fixture
def portal():
    with Portal() as opened:
        yield opened


def stages(folder: Path, model: Path, portal: Portal, *settings: str, prompts: list | None = None) -> Stages:
    rows = prompts or [{"prompt": f"{number}+1=", "label": str(number + 1)} for number in range(10)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:-2]))
    (folder / "held-out.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[-3:]))
    recipe = folder / "recipe.toml"
    recipe.write_text(
        f"model = '{model}'\nseed = 4\nrounds = 2\nprompts_per_round = 3\n"
        f"[prompts]\npath = '{folder}/prompts.jsonl'\n[eval_prompts]\npath = '{folder}/held-out.jsonl'\n"
        "[sampling]\nn = 4\nmax_new_tokens = 8\ntemperature = 0.5\n"
    )
    read = read_loop_recipe("rejection-sampling", [str(recipe), *settings])
    return Stages(read, folder / "run", str(model), portal, lambda line: None)


def test_rounds_take_other_prompts_and_none_that_is_held_out(tmp_path, model, portal):
    made = stages(tmp_path, model, portal)
    rounds = [made.round(1), made.round(2)]
    asked = [question.columns["prompt"] for task in rounds for question in task.questions]
    assert len(asked) == len(set(asked)) == 6
    # 7+1= is in both files: it is held out.
    assert set(asked) <= {f"{number}+1=" for number in range(7)}
    assert asked == [q.columns["prompt"] for n in (1, 2) for q in stages(tmp_path, model, portal).round(n).questions]
    assert rounds[1].folder == tmp_path / "run/round-02"
    requests = [question.request for question in rounds[0].questions]
    assert {(r.sampling.n, r.sampling.temperature, r.sampling.max_tokens) for r in requests} == {(4, 0.5, 8)}
    assert len({r.sampling.seed for r in requests}) == 3
    held_out = made.held_out(2)
    assert [question.columns["prompt"] for question in held_out.questions] == ["7+1=", "8+1=", "9+1="]
    assert {(q.request.sampling.temperature, q.samples) for q in held_out.questions} == {(0.0, 1)}
    assert held_out.folder == tmp_path / "run/held-out/after-02"


def test_the_reward_is_asked_with_the_label_and_the_row(tmp_path, model, portal):
    task = stages(tmp_path, model, portal).held_out(0)
    assert [(each.prompt, each.label) for each in task.scored.values()] == [
        ("7+1=", "8"),
        ("8+1=", "9"),
        ("9+1=", "10"),
    ]
    assert list(task.scored) == [question.key for question in task.questions]


def test_the_wanted_score_is_asked_for_once_the_policy_knows_of_scores(tmp_path, model, portal):
    made = stages(tmp_path, model, portal, "select=conditional", "target_score=2.5")
    tokenizer = load_tokenizer(model, False)

    def texts(task) -> list[str]:
        return [tokenizer.decode(q.request.tokens.ids, skip_special_tokens=True) for q in task.questions]

    assert texts(made.held_out(0)) == ["7+1=", "8+1=", "9+1="]
    assert all("score" not in text for text in texts(made.round(1)))
    # The tiny vocabulary has no underscore and no angle brackets.
    after = made.held_out(1)
    assert all("score" in text and text.endswith(": 2.50") for text in [*texts(after), *texts(made.round(2))])
    assert [each.prompt for each in after.scored.values()] == ["7+1=", "8+1=", "9+1="]
    assert [question.columns["prompt"] for question in after.questions] == ["7+1=", "8+1=", "9+1="]


def test_scores_in_whole_chats_are_refused(tmp_path, model, portal):
    prompts = [{"prompt": [{"role": "user", "content": f"{number}?"}], "label": ""} for number in range(10)]
    chat = ("prompts.apply_chat_template=true", "eval_prompts.apply_chat_template=true")
    stages(tmp_path, model, portal, *chat, prompts=prompts)
    with pytest.raises(ConfigError, match="input_template is for text"):
        stages(tmp_path, model, portal, *chat, "select=conditional", "target_score=1", prompts=prompts)


def test_a_stage_without_any_reward_is_told_and_asked_again(tmp_path, model, portal):
    task = stages(tmp_path, model, portal).held_out(0)
    responses = [{"request": question.key, "sample": 0, "response": "8"} for question in task.questions]
    scored = [row | {"reward": None, "reward_error": "REWARD_RAISED: broken"} for row in responses]
    path = tmp_path / "scored.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in scored))
    with pytest.raises(FailedPreconditionError, match=r"none of 3 responses got a reward: REWARD_RAISED: broken"):
        rewarded(task, rewards_file(path, responses))
    assert rewards_file(path, responses).missing == [question.key for question in task.questions]
    scored[1] |= {"reward": 0.0}
    path.write_text("".join(json.dumps(row) + "\n" for row in scored))
    assert [row["reward"] for row in rewarded(task, rewards_file(path, responses))] == [None, 0.0, None]
