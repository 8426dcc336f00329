"""Ranks of one learner: start-up, and exchange of bytes and numbers without pickle."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rlctl.core.errors import ConfigError
from rlctl.models.sequence_parallel import SequenceGroup

#: Longest wait for another rank in a collective of a step.
STEP_TIMEOUT = timedelta(minutes=30)
#: Ranks that wait for work wait as long as it takes: a rank that dies closes its connections, which ends the wait.
IDLE_TIMEOUT = timedelta(days=30)

_idle: Any = None
_step: Any = None


def initialise() -> torch.device:
    """Joins the ranks named by RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT (absent: one rank).

    NCCL on GPUs, gloo on CPUs. Returns this rank's device. May be called again.
    """
    global _idle, _step
    gpu = torch.cuda.is_available()
    local_rank = int(os.environ.setdefault("LOCAL_RANK", "0"))  # DeepSpeed reads it too
    device = torch.device("cuda", local_rank) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    else:
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # or DeepSpeed warns that it found no GPU
    if dist.is_initialized():
        return device
    world = int(os.environ.get("WORLD_SIZE", "1"))
    backend = "nccl" if gpu else "gloo"
    if world == 1:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, timeout=STEP_TIMEOUT)
    else:
        dist.init_process_group(backend, timeout=STEP_TIMEOUT)
    _idle = dist.new_group(backend="gloo", timeout=IDLE_TIMEOUT)
    _step = dist.new_group(backend="gloo", timeout=STEP_TIMEOUT)
    return device


def rank() -> int:
    return dist.get_rank()


def world_size() -> int:
    return dist.get_world_size()


def sequence_group(size: int) -> SequenceGroup | None:
    """This rank's group of `size` neighbours that share sequences; none for size 1. All ranks call it.

    Raises ConfigError when `size` does not divide the ranks there are.
    """
    if size == 1:
        return None
    if world_size() % size:
        raise ConfigError(f"sequence_parallel = {size} does not divide the {world_size()} ranks")
    mine = None
    for first in range(0, world_size(), size):
        handle = dist.new_group(list(range(first, first + size)), timeout=STEP_TIMEOUT)
        if first <= rank() < first + size:
            mine = SequenceGroup(rank() - first, size, handle)
    return mine


def broadcast_bytes(data: bytes | None = None) -> bytes:
    """Rank 0 gives `data`, every rank gets it. The others wait without limit, until rank 0 dies."""
    if world_size() == 1:
        assert data is not None
        return data
    size = torch.tensor([len(data) if data is not None else 0])
    dist.broadcast(size, 0, group=_idle)
    if rank() == 0:
        assert data is not None
        payload = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    else:
        payload = torch.empty(int(size), dtype=torch.uint8)
    if payload.numel():
        dist.broadcast(payload, 0, group=_idle)
    return payload.numpy().tobytes()


def broadcast_tensor(tensor: Tensor) -> None:
    """The tensor of every rank, on any device, becomes rank 0's."""
    if world_size() == 1:
        return
    held = tensor.detach().to("cpu", copy=True).contiguous()
    dist.broadcast(held.view(-1).view(torch.uint8), 0, group=_step)
    tensor.detach().copy_(held)


def gather_bytes(data: bytes) -> list[bytes]:
    """The bytes of every rank, in rank order, on every rank."""
    if world_size() == 1:
        return [data]
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(world_size())]
    dist.all_gather(sizes, torch.tensor([len(data)]), group=_step)
    widest = max(int(size) for size in sizes)
    mine = torch.zeros(widest, dtype=torch.uint8)
    mine[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else mine[:0]
    parts = [torch.empty(widest, dtype=torch.uint8) for _ in range(world_size())]
    dist.all_gather(parts, mine, group=_step)
    return [part[: int(size)].numpy().tobytes() for part, size in zip(parts, sizes, strict=True)]


def all_gather_floats(values: list[float]) -> list[list[float]]:
    """Equally many numbers of every rank, in rank order, in float64."""
    if world_size() == 1:
        return [values]
    mine = torch.tensor(values, dtype=torch.float64)
    parts = [torch.empty_like(mine) for _ in range(world_size())]
    dist.all_gather(parts, mine, group=_step)
    return [part.tolist() for part in parts]


def gather_ragged(values: list[Tensor]) -> list[list[Tensor]]:
    """Each rank's float32 tensors (of any lengths and number), on every rank."""
    if world_size() == 1:
        return [values]
    lengths = torch.tensor([value.numel() for value in values], dtype=torch.int64)
    flat = torch.cat(values).cpu().float() if values else torch.empty(0)
    head = gather_bytes(lengths.numpy().tobytes())
    body = gather_bytes(flat.numpy().tobytes())
    out = []
    for sizes, data in zip(head, body, strict=True):
        split = torch.frombuffer(bytearray(sizes), dtype=torch.int64).tolist() if sizes else []
        whole = torch.frombuffer(bytearray(data), dtype=torch.float32) if data else torch.empty(0)
        out.append(list(whole.split(split)) if split else [])
    return out


def barrier() -> None:
    """Waits for every rank."""
    if world_size() > 1:
        dist.barrier(group=_step)
