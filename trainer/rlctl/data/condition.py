"""The reward in the prompt (conditional SFT): what is learnt with the score it got, asked for with the one wanted."""

from __future__ import annotations

from typing import TypeVar

from rlctl.data.config import TextConfig

C = TypeVar("C", bound=TextConfig)
#: Tokens that a score behind a prompt takes at most: a byte each.
SCORE_TOKENS = 32


def score_text(score: float) -> str:
    """` <rm_score>: 1.25`, which stands behind the prompt."""
    # Adding 0 takes the sign off a zero.
    return f" <rm_score>: {round(score, 2) + 0.0:.2f}"


def with_target(config: C, score: float) -> C:
    """The data set's prompts with the wanted score behind each, which has room beside the longest prompt."""
    template = (config.input_template or "{}").replace("{}", "{}" + score_text(score))
    return config.model_copy(
        update={"input_template": template, "max_prompt_len": config.max_prompt_len + SCORE_TOKENS}
    )
