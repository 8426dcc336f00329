"""Every metric of a training step, by name: what it is, its unit. The source of docs/metrics.md."""

from __future__ import annotations

import sys

METRICS: dict[str, str] = {
    "reward/mean": "mean raw reward of the step's samples",
    "reward/std": "their standard deviation",
    "reward/shaped_mean": "mean after penalties and the clip (before the group's shaping)",
    "reward/component/*": "mean of one scorer's reward, or of what a user's function reported, by its name",
    "length/mean": "response length, tokens",
    "length/max": "longest response, tokens",
    "length/truncated": "share of responses cut by the length limit",
    "samples": "samples trained on",
    "samples/failed": "samples left out because they could not be scored",
    "response_tokens": "tokens of the samples' responses",
    "kl/mean": "KL to the reference: mean over sequences of the summed k1 estimate, nats",
    "kl/beta": "coefficient of the KL",
    "kl/loss": "mean of the KL estimate in the loss (kl.as_loss), nats a token",
    "mismatch/kl_mean": "KL of the sampler to the trainer's recomputed log-probs (k3), nats a token",
    "mismatch/abs_diff_mean": "mean absolute difference of the two, nats",
    "mismatch/abs_diff_max": "largest absolute difference, nats",
    "mismatch/weight_mean": "mean off-policy weight of the tokens (1 without a correction)",
    "mismatch/dropped_fraction": "share of tokens whose off-policy weight is 0",
    "staleness/max": "optimizer steps of the run between the oldest weights that sampled and those trained",
    "advantage/std": "standard deviation of the advantages before whitening",
    "policy/loss": "policy objective, with KL and entropy terms and the cross-entropy of `ptx`",
    "policy/ratio_mean": "mean ratio of new to old probability",
    "policy/ratio_first": "the same on the first minibatch of the step: 1 but for numerics",
    "policy/clip_fraction": "share of tokens whose ratio was clipped",
    "policy/dual_clip_fraction": "share of tokens held by the dual clip",
    "policy/kl_old_new": "KL of the policy before to after the update (k3), nats a token",
    "policy/entropy": "entropy of the policy, nats a token (with loss.entropy_coef)",
    "policy/aux_loss": "load-balancing loss of a mixture of experts, before actor.aux_loss_coef",
    "ptx/loss": "cross-entropy of the examples mixed in by `ptx`, nats a token",
    "policy/grad_norm": "global gradient norm before clipping",
    "policy/skipped": "share of the step's optimizer steps left out because their gradient was not finite",
    "policy/learning_rate": "mean learning rate of the step's optimizer steps",
    "value/loss": "critic's loss",
    "value/value_clip_fraction": "share of tokens whose value was clipped",
    "value/aux_loss": "load-balancing loss of the critic's experts, before critic.learner.aux_loss_coef",
    "value/grad_norm": "critic's gradient norm before clipping",
    "value/skipped": "the critic's share of them",
    "value/learning_rate": "critic's learning rate",
    "value/mean": "mean value",
    "value/return_mean": "mean return",
    "value/explained_variance": "share of the returns' variance that the values explain",
    "time/step": "wall time of the step, seconds",
    "time/generate": "of that: something was being generated",
    "time/score": "something was being scored or given reference log-probs, and nothing generated",
    "time/train": "log-probs, values, optimizer steps of actor and critic",
    "time/sync": "new weights to the generation replicas",
    "time/wait": "waiting for rollouts while nothing was generated or scored: queue and transport",
    "time/other": "the rest: journal, logs",
    "tokens_per_second": "response tokens trained a second of wall time",
    "sync/bytes": "weights sent to each replica, bytes",
    "ledger/issued": "prompt groups issued so far",
    "ledger/trained": "prompt groups trained on",
    "ledger/dropped": "prompt groups dropped, each with a reason in the journal",
    "ledger/pending": "prompt groups issued and not settled",
    "eval/accuracy": "held-out: share of responses with a reward above eval.correct_above",
    "eval/reward": "held-out: mean reward",
    "eval/length": "held-out: mean response length, tokens",
    "eval/n": "held-out: responses scored",
    "eval/failed": "held-out: prompts that could not be answered or scored",
}

OFFLINE_METRICS: dict[str, str] = {
    "loss": "the objective, mean over the step",
    "accuracy": "rm, dpo: share of pairs whose better response has the higher reward; prm: share of steps judged "
    "right; held-out of sft and kd: share of examples that greedy decoding gives token for token; held-out of kto: how "
    "often a desirable response's reward is above an undesirable one's",
    "token_accuracy": "held-out, sft and kd: share of tokens that greedy decoding gives",
    "margin": "rm, dpo: mean reward of the better response minus that of the worse",
    "reward_mean": "rm: mean reward of all responses",
    "reward_std": "rm: their standard deviation",
    "reward_chosen": "dpo: mean implicit reward of the better responses",
    "reward_rejected": "dpo: mean implicit reward of the worse responses",
    "reward_desirable": "kto: mean implicit reward of desirable responses",
    "reward_undesirable": "kto: mean implicit reward of undesirable responses",
    "kl": "kto: the reference point, nats a response; held-out of kd: KL of the teacher to the student, nats a token",
    "nll": "dpo: cross-entropy of the better responses, kd: of the given tokens, nats a token",
    "teacher_ce": "kd: cross-entropy of the student to the teacher, nats a token",
    "aux_loss": "load-balancing loss of a mixture of experts",
    "grad_norm": "global gradient norm before clipping",
    "skipped": "share of the optimizer steps left out because their gradient was not finite",
    "learning_rate": "learning rate",
    "epoch": "passes over the data so far",
    "progress": "share of the steps that is done",
    "tokens": "tokens of the step's examples, prompts included",
    "n": "held-out: examples measured",
}


def meaning(name: str) -> str | None:
    """What a metric is; None when the table does not know it."""
    known = OFFLINE_METRICS | {f"eval/{each}": text for each, text in OFFLINE_METRICS.items()} | METRICS
    if name in known:
        return known[name]
    parent = name.rsplit("/", 1)[0] + "/*"
    return METRICS.get(parent)


def markdown() -> str:
    """The table as a page."""
    rows, offline = (
        "".join(f"| `{name}` | {text} |\n" for name, text in table.items()) for table in (METRICS, OFFLINE_METRICS)
    )
    return (
        "# Metrics of a training run\n\n"
        "One row a step in `runs/<name>/metrics.jsonl`, the same names in TensorBoard and W&B. Prometheus has them as\n"
        "`rlctl_trainer_<name>` with `_` for every other character, on the trainer's page; every service also has\n"
        "`rlctl_rpc_*` for its calls. This page is written by `make docs`.\n\n"
        f"| name | meaning |\n|---|---|\n{rows}\n"
        "## Of the trainers without rollouts\n\n"
        "`rlctl launch sft`, `rm`, `dpo`, `kto`, `kd` and `prm` have these, `time/step` and `tokens_per_second`; what\n"
        "is held out stands in `evaluations.jsonl`, elsewhere as `eval/<name>`.\n\n"
        f"| name | meaning |\n|---|---|\n{offline}"
    )


if __name__ == "__main__":
    sys.stdout.write(markdown())
