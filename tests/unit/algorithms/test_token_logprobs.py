import math

import pytest
import torch

from rlctl.algorithms.logprobs import token_logprobs


def _case(n=7, d=5, v=11, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(n, d, dtype=dtype, generator=generator).requires_grad_()
    weight = torch.randn(v, d, dtype=dtype, generator=generator).requires_grad_()
    bias = torch.randn(v, dtype=dtype, generator=generator).requires_grad_()
    return hidden, weight, bias, torch.randint(0, v, (n,), generator=generator)


def test_two_tokens_by_hand():
    hidden = torch.tensor([[1.0], [1.0]])
    weight = torch.tensor([[0.0], [math.log(3.0)]])
    logprobs, entropy = token_logprobs(hidden, weight, torch.tensor([0, 1]), with_entropy=True)
    assert logprobs.tolist() == pytest.approx([math.log(0.25), math.log(0.75)])
    assert entropy.tolist() == pytest.approx([-0.25 * math.log(0.25) - 0.75 * math.log(0.75)] * 2)


def test_temperature_divides_the_logits():
    hidden, weight = torch.tensor([[1.0]]), torch.tensor([[0.0], [math.log(9.0)]])
    logprobs, _ = token_logprobs(hidden, weight, torch.tensor([1]), temperature=2.0)
    assert logprobs.item() == pytest.approx(math.log(0.75))  # 9 ** (1 / 2) = 3 of 1 + 3


@pytest.mark.parametrize("chunk", [1, 3, 7, None])
def test_gradients_agree_with_finite_differences(chunk):
    hidden, weight, bias, targets = _case()
    assert torch.autograd.gradcheck(
        lambda h, w, b: token_logprobs(h, w, targets, 0.7, chunk, b, with_entropy=True), (hidden, weight, bias)
    )


def test_the_chunk_changes_nothing():
    grads = []
    for chunk in (1, 4, 100):
        hidden, weight, bias, targets = _case(dtype=torch.float32)
        logprobs, entropy = token_logprobs(hidden, weight, targets, 1.3, chunk, bias, with_entropy=True)
        (logprobs * torch.arange(7)).sum().add(entropy.sum()).backward()
        grads.append(torch.cat([logprobs.detach(), entropy.detach(), hidden.grad.flatten(), weight.grad.flatten()]))
    for other in grads[1:]:
        torch.testing.assert_close(other, grads[0], rtol=1e-5, atol=1e-6)


def test_half_precision_inputs_give_fp32_results_and_gradients_of_their_own_type():
    hidden, weight, _, targets = _case(dtype=torch.float32)
    exact, _ = token_logprobs(hidden.bfloat16().float(), weight.bfloat16().float(), targets)
    half_hidden, half_weight = hidden.detach().bfloat16().requires_grad_(), weight.detach().bfloat16().requires_grad_()
    logprobs, _ = token_logprobs(half_hidden, half_weight, targets)
    assert logprobs.dtype == torch.float32
    torch.testing.assert_close(logprobs, exact, rtol=1e-5, atol=1e-5)
    logprobs.sum().backward()
    assert half_hidden.grad.dtype == half_weight.grad.dtype == torch.bfloat16


def test_a_forbidden_token_leaves_entropy_and_gradient_finite():
    hidden, weight, _, _ = _case(dtype=torch.float32)
    bias = torch.zeros(11)
    bias[3] = -torch.inf
    logprobs, entropy = token_logprobs(hidden, weight, torch.zeros(7, dtype=torch.int64), bias=bias, with_entropy=True)
    (logprobs.sum() + 5 * entropy.sum()).backward()
    assert entropy.isfinite().all()
    assert weight.grad.isfinite().all()
    assert (weight.grad[3] == 0).all()


def test_no_tokens_give_no_loss_and_a_zero_gradient():
    hidden, weight, _, _ = _case(n=0)
    logprobs, entropy = token_logprobs(hidden, weight, torch.zeros(0, dtype=torch.int64), with_entropy=True)
    (logprobs.sum() + entropy.sum()).backward()
    assert logprobs.shape == entropy.shape == (0,)
    assert (weight.grad == 0).all()


def test_the_whole_table_never_exists():
    biggest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal biggest
            result = func(*args, **(kwargs or {}))
            for tensor in result if isinstance(result, tuple) else (result,):
                if isinstance(tensor, torch.Tensor):
                    biggest = max(biggest, tensor.numel())
            return result

    hidden, weight = torch.randn(200, 4, requires_grad=True), torch.randn(50, 4, requires_grad=True)
    with Watch():
        logprobs, entropy = token_logprobs(hidden, weight, torch.zeros(200, dtype=torch.int64), 1.0, 10, None, True)
        (logprobs.sum() + entropy.sum()).backward()
    assert biggest <= 200 * 4  # a chunk is 10 x 50; the table would be 200 x 50


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan")])
def test_a_temperature_that_is_not_above_zero_is_refused(temperature):
    hidden, weight, _, targets = _case()
    with pytest.raises(ValueError, match="temperature must be above 0"):
        token_logprobs(hidden, weight, targets, temperature)
