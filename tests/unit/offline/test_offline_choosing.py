"""What is learnt from scored responses: worked by hand."""

from __future__ import annotations

from rlctl.core.config import load
from rlctl.data.condition import SCORE_TOKENS, score_text, with_target
from rlctl.data.config import DataConfig
from rlctl.offline.choosing import best_responses, conditioned_responses, preference_pairs


def rows(*groups: tuple[float | None, ...]) -> list[dict]:
    """Responses `0a`, `0b`, ... to prompt `p0`, and so on."""
    return [
        {
            "request": f"r{group}", "prompt": f"p{group}", "sample": sample, "response": f"{group}{'abcd'[sample]}",
            "finish": "stop", "reward": reward,
        }
        for group, rewards in enumerate(groups)
        for sample, reward in enumerate(rewards)
    ]  # fmt: skip


SCORED = rows((0.5, 2.0, 2.0), (1.0, 1.0), (None, -1.0, 0.0), (None, None))


def test_the_best_of_each_prompt_and_the_first_wins_ties():
    chosen = best_responses(SCORED)
    assert [(row["prompt"], row["response"], row["reward"]) for row in chosen.rows] == [
        ("p0", "0b", 2.0),
        ("p1", "1a", 1.0),
        ("p2", "2c", 0.0),
    ]
    assert chosen.counts == {"prompts": 4, "responses": 10, "cut": 0, "unscored": 3, "chosen": 3, "left_out": 1}


def test_a_prompt_whose_best_is_not_good_enough_is_left_out():
    chosen = best_responses(SCORED, min_reward=1.0)
    assert [row["response"] for row in chosen.rows] == ["0b", "1a"]
    assert chosen.counts["left_out"] == 2


def test_equal_scores_give_no_pair():
    chosen = preference_pairs(SCORED)
    assert [(row["chosen"], row["rejected"]) for row in chosen.rows] == [("0b", "0a"), ("2c", "2b")]
    assert chosen.rows[1] == {
        "prompt": "p2", "chosen": "2c", "rejected": "2b", "chosen_reward": 0.0, "rejected_reward": -1.0,
    }  # fmt: skip
    assert (chosen.counts["chosen"], chosen.counts["left_out"]) == (2, 2)


def test_what_was_cut_by_length_is_learnt_by_nobody():
    scored = rows((0.0, 3.0, 1.0))
    scored[1]["finish"] = "length"
    assert [row["response"] for row in best_responses(scored).rows] == ["0c"]
    assert [(row["chosen"], row["rejected"]) for row in preference_pairs(scored).rows] == [("0c", "0a")]
    assert [row["response"] for row in conditioned_responses(scored).rows] == ["0a", "0c"]
    assert best_responses(scored).counts["cut"] == 1


def test_every_response_is_conditioned_on_its_own_reward():
    chosen = conditioned_responses(rows((1.25, None), (-0.001,)))
    assert [(row["prompt"], row["response"]) for row in chosen.rows] == [
        ("p0 <rm_score>: 1.25", "0a"),
        ("p1 <rm_score>: 0.00", "1a"),
    ]
    assert chosen.counts == {"prompts": 2, "responses": 3, "cut": 0, "unscored": 1, "chosen": 2, "left_out": 0}


def test_the_target_stands_where_the_reward_stood():
    data = load(DataConfig, None, ["path=x.jsonl", "input_template=Q: {} A:", "max_prompt_len=10"])
    target = with_target(data, 2)
    assert target.input_template == "Q: {} <rm_score>: 2.00 A:"
    assert data.input_template.replace("{}", "p" + score_text(2)) == target.input_template.replace("{}", "p")
    assert target.max_prompt_len == 10 + SCORE_TOKENS
