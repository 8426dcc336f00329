"""Distillation from a teacher that tells its likeliest tokens and what the others have together."""

import math

import pytest
import torch

from rlctl.algorithms.distill import Told, soft_cross_entropy, tell, told_cross_entropy, told_entropy

#: Four tokens with probabilities 1/2, 1/4, 1/8, 1/8 (log-odds in binary digits).
LOGITS = torch.log(torch.tensor([[4.0, 2.0, 1.0, 1.0]]))
ONE = torch.ones(1, 1)


def test_the_likeliest_are_told_and_the_mass_of_the_others():
    told = tell(LOGITS[:, [2, 0, 3, 1]], 2)
    assert told.ids_NJ.tolist() == [[1, 3]]
    assert told.logprobs_NJ.exp().tolist() == [pytest.approx([0.5, 0.25])]
    assert told.tail_N.exp().tolist() == pytest.approx([0.25])


@pytest.mark.parametrize("k", [0, 4, 9])
def test_all_are_told_in_the_order_of_their_ids(k):
    told = tell(LOGITS, k)
    assert told.ids_NJ is None and told.tail_N is None
    assert told.logprobs_NJ.exp().tolist() == [pytest.approx([0.5, 0.25, 0.125, 0.125])]


def test_a_small_rest_keeps_its_digits():
    """1 - (1 - 2e-9) in float32 would be 0."""
    logits = torch.log(torch.tensor([[1.0, 1e-9, 1e-9]]))
    assert tell(logits, 1).tail_N.item() == pytest.approx(math.log(2e-9), rel=1e-6)


def test_the_others_are_one_more_outcome():
    """Teacher 1/2, 1/4, rest 1/4; a uniform student gives 1/4, 1/4, and the two others together 1/2."""
    told = tell(LOGITS, 2)
    loss = told_cross_entropy(ONE, torch.zeros(4, 1), told)
    assert loss.item() == pytest.approx(0.75 * math.log(4) + 0.25 * math.log(2))
    assert told_entropy(told).item() == pytest.approx(0.5 * math.log(2) + 2 * 0.25 * math.log(4))


def test_the_gradient_by_hand():
    """Logits go from what the student gives to what the teacher wants: 1/2, 1/4, and of the rest, 1/4, the student's
    own shares (here of equal size)."""
    weight = torch.zeros(4, 1, requires_grad=True)
    told_cross_entropy(ONE, weight, tell(LOGITS, 2)).sum().backward()
    assert weight.grad.flatten().tolist() == pytest.approx([0.25 - 0.5, 0.25 - 0.25, 0.25 - 0.125, 0.25 - 0.125])


def test_a_student_with_the_teachers_told_tokens_and_rest_is_at_the_least():
    """However it spreads the rest: here 1/2, 1/4, and 1/5 with 1/20. Where the told alone were scaled up to 1, the
    student would be asked to give the rest nothing."""
    told = tell(LOGITS, 2)
    weight = torch.log(torch.tensor([[0.5], [0.25], [0.2], [0.05]])).requires_grad_()
    loss = told_cross_entropy(ONE, weight, told)
    assert loss.item() == pytest.approx(told_entropy(told).item())
    loss.sum().backward()
    assert weight.grad.flatten().tolist() == pytest.approx([0.0] * 4, abs=1e-7)


def test_a_student_that_gives_the_rest_next_to_nothing_has_a_finite_gradient():
    weight = torch.tensor([[0.0], [0.0], [-200.0], [-200.0]], requires_grad=True)
    loss = told_cross_entropy(ONE, weight, tell(LOGITS, 2))
    loss.sum().backward()
    assert loss.item() == pytest.approx(0.75 * math.log(2) + 0.25 * (200 + math.log(2) - math.log(2)), rel=1e-6)
    assert weight.grad.flatten().tolist() == pytest.approx([0.5 - 0.5, 0.5 - 0.25, -0.125, -0.125], rel=1e-5)


def draw(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return (torch.randn(*shape, dtype=dtype, generator=generator) for shape in ((5, 3), (7, 3), (5, 4), (7, 4)))


@pytest.mark.parametrize("chunk", [2, None])
def test_all_tokens_told_are_a_teacher_in_memory(chunk):
    hidden, weight, teacher_hidden, teacher_weight = draw(torch.float32)
    told = tell(teacher_hidden @ teacher_weight.T, 0)
    grads = []
    for loss in (
        lambda h, w: soft_cross_entropy(h, w, teacher_hidden, teacher_weight, chunk),
        lambda h, w: told_cross_entropy(h, w, told, chunk),
    ):
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        value = loss(h, w)
        value.sum().backward()
        grads.append((value.detach(), h.grad, w.grad))
    for mine, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("chunk", [2, None])
@pytest.mark.parametrize("k", [0, 1, 3])
def test_gradient_agrees_with_finite_differences(k, chunk):
    hidden, weight, teacher_hidden, teacher_weight = draw()
    told = tell(teacher_hidden @ teacher_weight.T, k)
    assert torch.autograd.gradcheck(
        lambda h, w: told_cross_entropy(h, w, told, chunk), (hidden.requires_grad_(), weight.requires_grad_())
    )


@pytest.mark.parametrize("k", [0, 2])
def test_what_rounding_took_is_made_good(k):
    """A bfloat16 log-prob is off by up to 0.4 %; the student that says the same, as rounded, still has no gradient
    along all logits together."""
    hidden, weight, teacher_hidden, teacher_weight = draw(torch.float32)
    whole = tell(teacher_hidden @ teacher_weight.T, k)
    told = Told(whole.logprobs_NJ.bfloat16(), whole.ids_NJ, whole.tail_N)
    weight.requires_grad_()
    loss = told_cross_entropy(hidden, weight, told)
    loss.sum().backward()
    torch.testing.assert_close(weight.grad.sum(0), torch.zeros(3), rtol=0, atol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(loss, told_cross_entropy(hidden, weight, whole), rtol=0.02, atol=0)
    assert bool((loss >= told_entropy(told) - 1e-6).all())


def test_another_vocabulary_is_refused():
    with pytest.raises(ValueError, match="share a vocabulary: 8 and 7 tokens"):
        told_cross_entropy(torch.zeros(1, 2), torch.zeros(7, 2), Told(torch.zeros(1, 8)))
