"""One rank of the tests of sequence parallelism, experts and averages over ranks.

    parallel_rank.py FOLDER

FOLDER holds the models `llama`, `one_kv_head` and `mixtral`; what came out goes to FOLDER/RANKS-RANK.safetensors.
One rank runs every case without sequence parallelism, two share all sequences, four are two groups of two.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor, nn

from rlctl.learner import distributed
from rlctl.learner.learner import Learner
from rlctl.learner.sequence import Sequence
from rlctl.models.load import load_causal_lm
from support.training import critic, nll, policy, settings, square

#: Name, model, and settings; the value model where the name begins with `value`.
CASES = [
    ("packed", "llama", {"packing": True, "attention": "sdpa", "zero_stage": 1}),
    ("padded", "llama", {"packing": False, "attention": "eager", "zero_stage": 0}),
    ("zero3", "llama", {"packing": True, "zero_stage": 3, "gradient_checkpointing": True}),
    ("one_kv_head", "one_kv_head", {"packing": True, "zero_stage": 2}),
    ("lora", "one_kv_head", {"packing": False, "zero_stage": 3, "lora": {"rank": 4}}),
    ("qlora", "llama", {"packing": True, "zero_stage": 2, "lora": {"rank": 4, "quantize_4bit": True}}),
    ("value_packed", "llama", {"packing": True, "zero_stage": 3}),
    ("value_padded", "one_kv_head", {"packing": False, "zero_stage": 1}),
    ("experts", "mixtral", {"packing": True, "zero_stage": 3, "aux_loss_coef": 0.5}),
    ("experts_padded", "mixtral", {"packing": False, "zero_stage": 1, "aux_loss_coef": 0.5}),
]


#: Those that four ranks try.
IN_GROUPS = ("packed", "value_packed")


def sequences() -> list[Sequence]:
    """Nine of uneven lengths, some tokens untrained; one fills most of a micro-batch of 64 tokens."""
    generator = torch.Generator().manual_seed(5)
    found = []
    for number, (prompt, response) in enumerate(
        [(3, 5), (1, 1), (20, 37), (2, 9), (9, 20), (1, 30), (7, 1), (4, 4), (2, 2)]
    ):
        ids = torch.randint(4, 60, (prompt + response,), generator=generator)
        mask = torch.rand(response, generator=generator) > 0.2
        mask[0] = number != 3
        found.append(Sequence(ids[:prompt], ids[prompt:], mask))
    return found


def share() -> list[Sequence]:
    """All for one rank; two ranks have seven and two; of four one has none."""
    bounds = {1: [0, 9], 2: [0, 7, 9], 4: [0, 4, 5, 9, 9]}[distributed.world_size()]
    return sequences()[bounds[distributed.rank()] : bounds[distributed.rank() + 1]]


def small() -> list[Sequence]:
    """Sequences of 20 tokens, each a micro-batch of its own: rank 0 has five, rank 1 one."""
    generator = torch.Generator().manual_seed(6)
    ids = [torch.randint(4, 60, (20,), generator=generator) for _ in range(6)]
    found = [Sequence(row[:4], row[4:], torch.ones(16, dtype=torch.bool)) for row in ids]
    if distributed.world_size() == 1:
        return found
    return found[:5] if distributed.rank() == 0 else found[5:]


def main(folder: Path) -> None:
    distributed.initialise()
    ranks = distributed.world_size()
    found: dict[str, torch.Tensor] = {}
    for name, model, changes in CASES:
        if ranks == 4 and name not in IN_GROUPS:
            continue
        value = name.startswith("value")
        learner = (critic if value else policy)(folder / model, sequence_parallel=min(2, ranks), ranks=ranks, **changes)
        outputs = learner.values(share()) if value else learner.logprobs(share(), 0.7)
        found[f"{name}/outputs"] = torch.cat([torch.empty(0), *outputs])
        metrics = learner.accumulate(share(), square if value else nll, temperature=0.7)
        found[f"{name}/loss"] = torch.tensor([metrics["loss"], metrics.get("aux_loss", 0.0)])
        found[f"{name}/gradient"] = learner.gradients()
        learner.apply()
    if ranks < 4:
        _experts(folder, ranks, found)
        _average(folder, ranks)
    save_file(found, folder / f"{ranks}-{distributed.rank()}.safetensors")
    dist.barrier()


class Expert(nn.Module):
    def __init__(self, gate_up: Tensor, down: Tensor) -> None:
        super().__init__()
        self.gate_up, self.down = nn.Parameter(gate_up.clone()), nn.Parameter(down.clone())

    def forward(self, x: Tensor) -> Tensor:
        gate, up = nn.functional.linear(x, self.gate_up).chunk(2, -1)
        return nn.functional.linear(nn.functional.silu(gate) * up, self.down)


class ListedExperts(nn.Module):
    """Mixtral's block with experts one by one, as models of code of their own have them: unused ones do not run."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.gate = block.gate
        pairs = zip(block.experts.gate_up_proj.detach(), block.experts.down_proj.detach(), strict=True)
        self.experts = nn.ModuleList(Expert(*pair) for pair in pairs)

    def forward(self, hidden: Tensor) -> Tensor:
        flat = hidden.flatten(0, -2)
        _, weights, chosen = self.gate(flat)
        out = torch.zeros_like(flat)
        for index in chosen.unique().tolist():
            rows, columns = torch.where(chosen == index)
            out = out.index_add(0, rows, self.experts[index](flat[rows]) * weights[rows, columns, None])
        return out.view(hidden.shape)


def _experts(folder: Path, ranks: int, found: dict[str, torch.Tensor]) -> None:
    """Data-parallel under ZeRO-3: rank 1 runs four empty micro-batches, of two tokens, through the experts."""
    for name in ("shared_out", "listed"):
        model = load_causal_lm(folder / "mixtral", "float32")
        if name == "listed":
            for layer in model.model.layers:
                layer.mlp = ListedExperts(layer.mlp)
        config = settings(zero_stage=3, aux_loss_coef=0.5, micro_batch_tokens=20, ranks=ranks)
        learner = Learner(model, config, total_steps=1)
        found[f"{name}/outputs"] = torch.cat(learner.logprobs(small()))
        metrics = learner.accumulate(small(), nll)
        found[f"{name}/loss"] = torch.tensor([metrics["loss"], metrics["aux_loss"]])
        found[f"{name}/gradient"] = learner.gradients()
        learner.apply()


def _average(folder: Path, ranks: int) -> None:
    """Adapters and their average under ZeRO-3, saved by all ranks together, and gone on with from a checkpoint."""

    def learner() -> Learner:
        changes = {"zero_stage": 3, "lora": {"rank": 4}, "ema_decay": 0.5, "optimizer": {"lr": 1e-2, "eps": 1e-2}}
        return policy(folder / "llama", ranks=ranks, **changes)

    first = learner()
    first.step(small(), nll)
    first.save(folder / f"state-{ranks}")
    second = learner()
    second.load(folder / f"state-{ranks}")
    for each in (first, second):
        each.step(small(), nll)
    first.save_hf(folder / f"saved-{ranks}", None)
    second.save_hf(folder / f"again-{ranks}", None)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
