import math

import pytest
import torch

from rlctl.algorithms.distill import distillation_loss, soft_cross_entropy
from rlctl.algorithms.preference import dpo_loss, ipo_loss, kto_kl, kto_loss, pairwise_loss, sequence_logprobs
from rlctl.algorithms.selection import best_and_worst, best_of
from rlctl.algorithms.supervised import process_reward_loss, sft_loss

NAN = float("nan")


def _sigmoid(x):
    return 1 / (1 + math.exp(-x))


def test_sft_is_the_cross_entropy_of_trained_tokens():
    logprobs = torch.tensor([[-1.0, NAN, -2.0]], requires_grad=True)
    loss = sft_loss(logprobs, torch.tensor([[True, False, True]]))
    loss.sum().backward()
    assert loss.tolist() == [[1.0, 0.0, 2.0]]
    assert logprobs.grad.tolist() == [[-1.0, 0.0, -1.0]]


def test_response_logprobs_are_summed_or_averaged_over_trained_tokens():
    logprobs, mask = torch.tensor([[-1.0, -2.0, NAN], [NAN] * 3]), torch.tensor([[True, True, False], [False] * 3])
    assert sequence_logprobs(logprobs, mask).tolist() == [-3.0, 0.0]
    assert sequence_logprobs(logprobs, mask, mean=True).tolist() == [-1.5, 0.0]


def test_pairwise_by_hand():
    chosen, rejected = torch.tensor([2.0, 0.0]), torch.tensor([1.0, 0.0])
    assert pairwise_loss(chosen, rejected).tolist() == pytest.approx([math.log(1 + math.exp(-1)), math.log(2)])
    with_margin = pairwise_loss(chosen, rejected, torch.tensor([1.0, 2.0]))
    assert with_margin.tolist() == pytest.approx([math.log(2), math.log(1 + math.exp(2))])


PAIR = (torch.tensor([-10.0]), torch.tensor([-12.0]), torch.tensor([-11.0]), torch.tensor([-11.5]))  # z = 1.5


def test_dpo_by_hand():
    result = dpo_loss(*PAIR, beta=0.2)
    assert result.loss_P.item() == pytest.approx(-math.log(_sigmoid(0.3)))
    assert result.chosen_rewards_P.item() == pytest.approx(0.2)
    assert result.rejected_rewards_P.item() == pytest.approx(-0.1)


def test_cdpo_mixes_in_the_flipped_label():
    expected = -0.9 * math.log(_sigmoid(0.3)) - 0.1 * math.log(_sigmoid(-0.3))
    assert dpo_loss(*PAIR, beta=0.2, label_smoothing=0.1).loss_P.item() == pytest.approx(expected)


def test_ipo_by_hand():
    assert ipo_loss(*PAIR, beta=0.2).loss_P.item() == pytest.approx((1.5 - 2.5) ** 2)


def test_kto_by_hand():
    policy, ref = torch.tensor([-10.0, -10.0]), torch.tensor([-12.0, -12.0])  # D = 2
    loss = kto_loss(
        policy, ref, torch.tensor([True, False]), kl=0.5, beta=0.1, desirable_weight=1.5, undesirable_weight=0.5
    )
    assert loss.tolist() == pytest.approx([1.5 * (1 - _sigmoid(0.15)), 0.5 * (1 - _sigmoid(-0.15))])


def test_kto_reference_point_is_never_negative():
    assert kto_kl(6.0, 4) == 1.5
    assert kto_kl(-6.0, 4) == 0.0
    assert kto_kl(0.0, 0) == 0.0


@pytest.mark.parametrize("labels", [torch.tensor([0, 1]), torch.tensor([1.0, 0.25])])
def test_process_reward_by_hand(labels):
    logits = torch.tensor([[math.log(3.0), 0.0], [0.0, 0.0]])  # 3/4, 1/4; 1/2, 1/2
    loss = process_reward_loss(logits, labels)
    assert loss.tolist() == pytest.approx([-math.log(0.75), math.log(2)])


def test_soft_labels_mix_both_tokens_and_need_exactly_two():
    loss = process_reward_loss(torch.tensor([[math.log(3.0), 0.0]]), torch.tensor([0.6]))
    assert loss.item() == pytest.approx(-0.6 * math.log(0.75) - 0.4 * math.log(0.25))
    with pytest.raises(ValueError, match="two reward tokens, not 3"):
        process_reward_loss(torch.zeros(1, 3), torch.tensor([0.6]))


def test_distillation_by_hand():
    one = torch.ones(1, 1)
    student, teacher = torch.tensor([[0.0], [0.0]]), torch.tensor([[math.log(3.0)], [0.0]])
    soft = soft_cross_entropy(one, student, one, teacher)
    assert soft.item() == pytest.approx(math.log(2))
    itself = soft_cross_entropy(one, teacher, one, teacher)
    assert itself.item() == pytest.approx(-0.75 * math.log(0.75) - 0.25 * math.log(0.25))
    assert distillation_loss(torch.tensor([-2.0]), soft, 0.25).item() == pytest.approx(1.5 + 0.25 * math.log(2))


@pytest.mark.parametrize("chunk", [2, None])
def test_distillation_gradient_agrees_with_finite_differences(chunk):
    generator = torch.Generator().manual_seed(0)
    hidden, weight, teacher_hidden, teacher_weight = (
        torch.randn(*shape, dtype=torch.float64, generator=generator) for shape in ((5, 3), (7, 3), (5, 4), (7, 4))
    )
    assert torch.autograd.gradcheck(
        lambda h, w: soft_cross_entropy(h, w, teacher_hidden, teacher_weight, chunk),
        (hidden.requires_grad_(), weight.requires_grad_()),
    )


def test_distillation_in_half_precision_keeps_types():
    hidden, weight = (torch.randn(*s).bfloat16().requires_grad_() for s in ((5, 3), (7, 3)))
    soft = soft_cross_entropy(hidden, weight, torch.randn(5, 4), torch.randn(7, 4))
    soft.sum().backward()
    assert soft.dtype == torch.float32
    assert hidden.grad.dtype == weight.grad.dtype == torch.bfloat16


def test_distillation_refuses_another_vocabulary():
    with pytest.raises(ValueError, match="share a vocabulary: 8 and 7 tokens"):
        soft_cross_entropy(torch.zeros(1, 2), torch.zeros(7, 2), torch.zeros(1, 2), torch.zeros(8, 2))


def test_the_first_best_of_a_group_is_chosen():
    scores, group = torch.tensor([1.0, 3.0, 3.0, NAN, 0.0, NAN]), torch.tensor([5, 5, 5, 5, 2, 9])
    assert best_of(scores, group).tolist() == [1, 4]


def test_pairs_are_best_and_worst_unless_all_are_equal():
    scores, group = torch.tensor([1.0, 3.0, 0.0, 2.0, 2.0, NAN]), torch.tensor([0, 0, 0, 1, 1, 1])
    assert best_and_worst(scores, group).tolist() == [[1, 2]]
    assert best_and_worst(scores[3:], group[3:]).shape == (0, 2)
