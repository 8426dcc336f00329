"""The same objectives by TRL's own trainers: their loss methods run on a stand-in `self` that holds settings."""

from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch

from rlctl.algorithms.aggregate import aggregate
from rlctl.algorithms.distill import soft_cross_entropy
from rlctl.algorithms.kl import kl_per_token
from rlctl.algorithms.logprobs import token_logprobs
from rlctl.algorithms.policy_loss import cispo_loss, gspo_loss, ppo_loss
from rlctl.algorithms.preference import dpo_loss, ipo_loss, kto_kl, kto_loss, pairwise_loss, sequence_logprobs

pytestmark = pytest.mark.optional
B, T, P = 4, 6, 3


@pytest.fixture
def trl_trainer():
    return pytest.importorskip("trl.trainer", reason="needs trl==1.16.0")


def _empty_module():
    """What accelerate looks into for compiled parts and wrappers."""
    module = torch.nn.Module()
    module.is_gradient_checkpointing = False
    return module


def _self(**settings):
    accelerator = SimpleNamespace(
        device=torch.device("cpu"), num_processes=1, gather=lambda x: x, gather_for_metrics=lambda x: x,
        reduce=lambda x, reduction: x,
    )  # fmt: skip
    metrics = {"train": defaultdict(list), "eval": defaultdict(list)}
    defaults = {
        "aux_loss_enabled": False,
        "_total_train_tokens": 0,
        "_tp_size": 1,
        "model": _empty_module(),
    }
    return SimpleNamespace(accelerator=accelerator, _metrics=metrics, **(defaults | settings))


def _random(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _model(logprobs):
    """Answers with given log-probs of the tokens after the first."""

    def call(input_ids, **_):
        zeros = torch.zeros_like(logprobs)
        return SimpleNamespace(log_probs=logprobs, entropy=zeros, mean_logits=zeros, is_top1=zeros.bool())

    return call


def _completions(rows, seed=1):
    """Completion mask over P prompt and up to T response positions, and log-probs that are 0 outside it."""
    lengths = torch.randint(1, T + 1, (rows,), generator=torch.Generator().manual_seed(seed))
    positions = torch.arange(P + T)
    mask = (positions >= P) & (positions < P + lengths.unsqueeze(-1))
    policy, ref = (-_random(rows, P + T - 1, seed=s).abs() * mask[:, 1:] for s in (2, 3))
    return mask, policy, ref


def _inputs(mask):
    ids = torch.zeros(mask.shape, dtype=torch.int64)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "completion_mask": mask.long()}


def _dpo_self(ref_model, kind, label_smoothing=0.0):
    return _self(
        ld_alpha=None, precompute_ref_logps=False, args=SimpleNamespace(gradient_checkpointing_kwargs=None),
        f_divergence_type="reverse_kl", loss_types=[kind], loss_weights=[1.0], beta=0.3, use_weighting=False,
        label_smoothing=label_smoothing, ref_model=ref_model,
        model=_empty_module(),
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["sigmoid", "ipo"])
def test_dpo_and_ipo(trl_trainer, kind):
    mask, policy, ref = _completions(2 * B)
    trainer = _dpo_self(_model(ref), kind)
    theirs = trl_trainer.DPOTrainer._compute_loss(trainer, _model(policy), _inputs(mask), False)
    sides = [sequence_logprobs(x, mask[:, 1:], mean=kind == "ipo") for x in (policy, ref)]
    (chosen, rejected), (ref_chosen, ref_rejected) = (side.chunk(2) for side in sides)
    ours = (ipo_loss if kind == "ipo" else dpo_loss)(chosen, rejected, ref_chosen, ref_rejected, beta=0.3)
    torch.testing.assert_close(ours.loss_P.mean(), theirs)
    if kind == "sigmoid":
        assert ours.chosen_rewards_P.mean().item() == pytest.approx(trainer._metrics["train"]["rewards/chosen"][0])


def test_cdpo(trl_trainer):
    mask, policy, ref = _completions(2 * B)
    trainer = _dpo_self(_model(ref), "robust", label_smoothing=0.1)
    robust = trl_trainer.DPOTrainer._compute_loss(trainer, _model(policy), _inputs(mask), False)
    sides = [part for x in (policy, ref) for part in sequence_logprobs(x, mask[:, 1:]).chunk(2)]
    smooth = dpo_loss(*sides, beta=0.3, label_smoothing=0.1).loss_P
    flipped = dpo_loss(sides[1], sides[0], sides[3], sides[2], beta=0.3).loss_P
    # "robust" subtracts the flipped term where cDPO adds it, and rescales.
    torch.testing.assert_close((smooth - 0.2 * flipped).mean() / 0.8, robust)


def test_kto(trl_trainer):
    mask, policy, ref = _completions(B)
    kl_mask, kl_policy, kl_ref = _completions(B, seed=7)
    kl_policy = kl_policy * 0.5
    desirable = torch.tensor([True, False, True, True])

    def model(main, mismatched):
        return lambda input_ids, **_: _model(mismatched if (input_ids == 1).any() else main)(input_ids)

    ids = _inputs(kl_mask)
    inputs = _inputs(mask) | {
        "label": desirable, "KL_input_ids": ids["input_ids"] + 1, "KL_attention_mask": ids["attention_mask"],
        "KL_completion_mask": ids["completion_mask"],
    }  # fmt: skip
    trainer = _self(
        precompute_ref_logps=False, args=SimpleNamespace(gradient_checkpointing_kwargs=None), calculate_KL=True,
        loss_type="kto", beta=0.3, desirable_weight=1.5, undesirable_weight=0.5, ref_model=model(ref, kl_ref),
        model=_empty_module(),
    )  # fmt: skip
    trainer._compute_kl_logps = lambda m, batch: trl_trainer.KTOTrainer._compute_kl_logps(trainer, m, batch)
    theirs = trl_trainer.KTOTrainer._compute_loss(trainer, model(policy, kl_policy), inputs, False)
    gap = sequence_logprobs(kl_policy - kl_ref, kl_mask[:, 1:]).sum().item()
    kl = kto_kl(gap, B)
    assert kl > 0
    ours = kto_loss(
        sequence_logprobs(policy, mask[:, 1:]), sequence_logprobs(ref, mask[:, 1:]), desirable, kl, beta=0.3,
        desirable_weight=1.5, undesirable_weight=0.5,
    )  # fmt: skip
    torch.testing.assert_close(ours.mean(), theirs)


def test_pairwise(trl_trainer):
    rewards, margin = _random(2 * B, 1), _random(B, seed=1).abs()
    trainer = _self(args=SimpleNamespace(center_rewards_coefficient=None))
    inputs = {"attention_mask": torch.ones(1), "margin": margin}
    theirs = trl_trainer.RewardTrainer.compute_loss(trainer, lambda **_: SimpleNamespace(logits=rewards), inputs)
    torch.testing.assert_close(pairwise_loss(*rewards.squeeze(-1).chunk(2), margin).mean(), theirs)


@pytest.mark.parametrize(
    "kind, level, normalisation", [
        ("ppo", "token", "dapo"), ("ppo", "token", "grpo"), ("ppo", "token", "dr_grpo"),
        ("gspo", "sequence", "grpo"), ("cispo", "token", "cispo"),
    ],
)  # fmt: skip
def test_policy_losses(trl_trainer, kind, level, normalisation):
    old, ref = -_random(B, T).abs(), -_random(B, T, seed=3).abs()
    logprobs = (old + 0.3 * _random(B, T, seed=1)).requires_grad_()
    advantages = _random(B, seed=2)
    mask = torch.arange(T) < torch.tensor([[6], [2], [4], [1]])
    low, high = (3e-2, 4e-2) if kind == "gspo" else (0.2, 0.28)
    trainer = _self(
        top_entropy_quantile=1.0, off_policy_mask_threshold=None, importance_sampling_level=level, beta=0.05,
        loss_type=normalisation, epsilon_low=low, epsilon_high=1.0 + high if kind == "cispo" else high,
        args=SimpleNamespace(use_bias_correction_kl=False, delta=None, steps_per_generation=1), use_vllm=False,
        current_gradient_accumulation_steps=1, _entropy_bonus_enabled=False, max_completion_length=9,
    )  # fmt: skip
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (logprobs, torch.zeros_like(old), None)
    inputs = {
        "prompt_ids": torch.zeros(B, P), "prompt_mask": torch.ones(B, P), "completion_ids": torch.zeros(B, T),
        "completion_mask": mask.long(), "advantages": advantages, "old_per_token_logps": old,
        "ref_per_token_logps": ref, "num_items_in_batch": mask.sum(),
    }  # fmt: skip
    theirs = trl_trainer.GRPOTrainer._compute_loss(trainer, None, inputs)
    (their_gradient,) = torch.autograd.grad(theirs, logprobs)

    spread = advantages.unsqueeze(-1).expand(B, T)
    if kind == "cispo":
        policy = cispo_loss(logprobs, old, spread, mask, clip_high=high)
    else:
        loss = gspo_loss if kind == "gspo" else ppo_loss
        policy = loss(logprobs, old, spread, mask, clip_low=low, clip_high=high)
    mode = {"grpo": "sequence", "dr_grpo": "constant"}.get(normalisation, "token")
    kl = kl_per_token(logprobs, ref, mask, "k3")
    ours = aggregate(policy.loss_BT + 0.05 * kl, mask, mode, total_tokens=int(mask.sum()), total_sequences=B, max_len=9)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(torch.autograd.grad(ours, logprobs)[0], their_gradient)


def test_logprobs_and_entropy(trl_trainer):
    from trl.trainer.utils import selective_log_softmax_and_entropy

    hidden, weight = _random(T, 5).requires_grad_(), _random(13, 5, seed=1)
    targets = torch.arange(T)
    theirs = selective_log_softmax_and_entropy((hidden @ weight.T).unsqueeze(0), targets.unsqueeze(0), temperature=0.7)
    ours = token_logprobs(hidden, weight, targets, 0.7, 2, with_entropy=True)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other.squeeze(0))
        gradients = [torch.autograd.grad(x.sum(), hidden, retain_graph=True)[0] for x in (mine, other)]
        torch.testing.assert_close(*gradients)


def test_distillation_is_the_forward_kl_up_to_the_teachers_entropy(trl_trainer):
    gold = pytest.importorskip("trl.experimental.gold.gold_trainer", reason="needs trl's GOLD trainer")
    student, weight, teacher = (_random(*s, seed=i) for i, s in enumerate([(T, 5), (13, 5), (T, 5)]))
    theirs = gold.GOLDTrainer.generalized_jsd_loss(student @ weight.T, teacher @ weight.T, beta=0, reduction="none")
    ours = soft_cross_entropy(student, weight, teacher, weight)
    torch.testing.assert_close(ours - soft_cross_entropy(teacher, weight, teacher, weight), theirs.sum(-1))
