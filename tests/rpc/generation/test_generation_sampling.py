"""Sampling and the end of sequences, worked by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch

from rlctl.generation.engine import Sampling
from rlctl.generation.sampler import Row, cut, penalize, sample
from rlctl.generation.sequence import GrowingSequence

#: Probabilities 1/2, 1/4, 1/8, 1/8.
LOGITS = torch.tensor([8.0, 4.0, 2.0, 2.0]).log()


def row(sampling: Sampling, prompt: Sequence[int] = (), response: Sequence[int] = (), seed: int = 0) -> Row:
    return Row(sampling, prompt, response, torch.Generator().manual_seed(seed))


def kept(sampling: Sampling) -> list[int]:
    return [index for index, value in enumerate(cut(LOGITS, sampling).tolist()) if value > -math.inf]


def test_top_k_top_p_and_min_p_keep_the_likeliest() -> None:
    assert kept(Sampling(top_k=2)) == [0, 1]
    assert kept(Sampling(top_p=0.4)) == [0]
    assert kept(Sampling(top_p=0.5)) == [0]
    assert kept(Sampling(top_p=0.6)) == [0, 1]
    assert kept(Sampling(min_p=0.5)) == [0, 1]
    assert kept(Sampling(min_p=0.26)) == [0, 1]
    assert kept(Sampling(top_p=1e-9, min_p=0.99)) == [0]


def test_logprobs_are_of_the_distribution_drawn_from() -> None:
    tokens, logprobs = sample(
        LOGITS.repeat(3, 1), [row(Sampling(top_k=1)), row(Sampling(temperature=0)), row(Sampling())]
    )
    assert tokens[:2].tolist() == [0, 0]
    assert logprobs[0].item() == pytest.approx(0.0, abs=1e-6)
    # Greedy: that of temperature 1.
    assert logprobs[1].item() == pytest.approx(math.log(0.5))
    assert logprobs[2].item() == pytest.approx(math.log([0.5, 0.25, 0.125, 0.125][tokens[2]]))
    # At temperature 1/2 probabilities are as 64 : 16 : 4 : 4.
    hot, hot_logprobs = sample(LOGITS.repeat(1, 1), [row(Sampling(temperature=0.5))])
    assert hot_logprobs.item() == pytest.approx(math.log([64, 16, 4, 4][hot.item()] / 88), abs=1e-5)


def test_draws_follow_the_distribution() -> None:
    rows = [row(Sampling(), seed=seed) for seed in range(4000)]
    tokens, _ = sample(LOGITS.repeat(4000, 1), rows)
    shares = torch.bincount(tokens, minlength=4) / 4000
    assert shares.tolist() == pytest.approx([0.5, 0.25, 0.125, 0.125], abs=0.03)


def test_penalties_by_hand() -> None:
    logits = torch.tensor([2.0, -2.0, 1.0, 0.0])
    repeated = penalize(logits, row(Sampling(repetition_penalty=2.0), prompt=[0], response=[1]))
    assert repeated.tolist() == [1.0, -4.0, 1.0, 0.0]
    counted = penalize(logits, row(Sampling(presence_penalty=0.5, frequency_penalty=0.25), prompt=[0], response=[2, 2]))
    assert counted.tolist() == [2.0, -2.0, 0.0, 0.0]


class Letters:
    """Token 0 is special, the others are letters; 26 is half of a character."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        return "".join("�" if one == 26 else chr(96 + one) for one in ids if one)


def grown(tokens: str, **settings: object) -> GrowingSequence:
    sampling = Sampling(max_tokens=10, **settings)  # type: ignore[arg-type]
    sequence = GrowingSequence([5], sampling, torch.Generator(), {0}, Letters(), logprobs=True)
    for token in tokens:
        sequence.append(0 if token == "." else ord(token) - 96, -1.0, 3)
    return sequence


def test_a_sequence_ends_with_eos_stop_text_stop_token_or_length() -> None:
    assert grown("ab").finish is None
    assert grown("ab.").finish == "stop"
    assert grown("ab.", ignore_eos=True).finish is None
    assert grown("abc", stop=("bc",)).finish == "stop"
    assert grown("abc", stop_token_ids=(3,)).finish == "stop"
    assert grown("abcdefghij").finish == "length"


def test_a_stop_text_is_cut_off_and_its_beginning_held_back() -> None:
    sequence = grown("xa", stop=("abc",))
    assert sequence.piece().text == ""
    sequence.append(2, -1.0, 3)
    assert sequence.piece().text == "x"
    sequence.append(4, -1.0, 3)
    assert sequence.piece().text == "a"
    for token in (1, 2, 3):
        sequence.append(token, -1.0, 4)
    last = sequence.piece()
    assert last.text == "bd"
    assert last.finish == "stop"
    assert last.token_ids == [1, 2, 3]
    assert last.versions == [3, 4]


def test_half_a_character_waits_for_its_other_half() -> None:
    sequence = grown("az")
    assert sequence.piece().text == "a"
    assert sequence.piece().token_ids == []
