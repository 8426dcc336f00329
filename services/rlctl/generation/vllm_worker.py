"""What runs inside vLLM's worker processes: the receiving end of the weights.

vLLM imports this module by the name of `WorkerExtension`, and with that the transfer engine is registered and the
process is tied to the one that serves. Traps that are met here:
- On a CPU weights are prepacked and the plain ones thrown away, so that loading goes through vLLM's layerwise reload.
- The reload keeps references to what it was given until a layer is complete; our tensors lie in a buffer that the
  next bucket overwrites.
- A tied head loads nothing, and its prepacked copy stays the old one, silently, unless it is processed again.
- For float32 logits vLLM widens a CPU's head anew for every token, which takes longer than the product itself.
- On a CPU experts are prepacked when they are first loaded and never again: plain weights lie where packed ones should.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.attention import is_deferred_attention_layer
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
from vllm.platforms import current_platform

from rlctl.algorithms.products import float_product
from rlctl.core.errors import FailedPreconditionError, RlctlError
from rlctl.generation import lifeline
from rlctl.weights.bucket import Announcement, entry_of
from rlctl.weights.group import Invitation, first_line
from rlctl.weights.receiver import Receiver

#: Name under which vLLM's factory knows our transfer engine.
BACKEND = "rlctl"


@dataclass
class Join(WeightTransferInitInfo):
    """The fields of an Invitation."""

    group: str
    backend: str
    host: str
    port: int
    world_size: int
    rank: int
    timeout_s: float


@dataclass
class BucketInfo(WeightTransferUpdateInfo):
    """The fields of an Announcement, flat."""

    index: int
    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]
    num_bytes: int
    digest: bytes


class TransferEngine(WeightTransferEngine[Join, BucketInfo]):
    """Receives buckets over gloo or NCCL and loads them."""

    init_info_cls = Join
    update_info_cls = BucketInfo
    supports_draft_weight_update = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._receiver = Receiver(self.device)
        self._tied: list[torch.nn.Module] = []

    def init_transfer_engine(self, init_info: Join) -> None:
        self._receiver.join(Invitation(**vars(init_info)))

    def start_weight_update(self) -> None:
        discard(self.model, self.model_config)
        _wide_heads.clear()
        self._tied = tied_modules(self.model)
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: BucketInfo) -> None:
        columns = zip(update_info.names, update_info.dtypes, update_info.shapes, strict=True)
        entries = tuple(entry_of(name, dtype, shape) for name, dtype, shape in columns)
        announcement = Announcement(update_info.index, entries, update_info.num_bytes, update_info.digest)
        tensors = self._receiver.receive(announcement)
        load: Any = self.model.load_weights
        try:
            load(iter(tensors))
        except (KeyError, ValueError, RuntimeError, AssertionError) as error:
            raise FailedPreconditionError(
                f"the model does not take bucket {announcement.index}: {type(error).__name__}: {first_line(error)}; "
                "trainer and replica must hold the same architecture",
                reason="WEIGHTS_DO_NOT_FIT",
            ) from error
        keep_pending(self.model)

    def finish_weight_update(self) -> None:
        missing = incomplete(self.model, self._tied)
        if missing:
            raise FailedPreconditionError(
                f"the update lacks weights of {len(missing)} modules, {missing[0]} among them", reason="INCOMPLETE"
            )
        finalize_layerwise_reload(self.model, self.model_config)
        for module in self._tied:
            method = getattr(module, "quant_method", None)
            if isinstance(method, QuantizeMethodBase):
                method.process_weights_after_loading(module)
        _wide_heads.clear()

    def shutdown(self) -> None:
        self._receiver.leave()


class WorkerExtension:
    """Methods that the serving process calls in every worker; each gives None, or the error's reason and text.

    An error that vLLM carries across processes is only a text, so that errors are given as results.
    """

    def rlctl_join(self: Any, init_info: dict[str, Any]) -> list[str] | None:
        """Joins a group; `rank` is that of the replica's first worker."""
        own = {**init_info, "rank": init_info["rank"] + self.rank}
        return _caught(lambda: self.init_weight_transfer_engine(own))

    def rlctl_begin(self: Any) -> list[str] | None:
        """Opens an update, also after one that broke off."""
        self._weight_update_active = False
        return _caught(self.start_weight_update)

    def rlctl_load(self: Any, update_info: dict[str, Any]) -> list[str] | None:
        """Receives and loads a bucket."""
        return _caught(lambda: self.update_weights(update_info))

    def rlctl_finish(self: Any) -> list[str] | None:
        """Puts the new weights in place."""
        return _caught(self.finish_weight_update)


def _caught(function: Callable[[], None]) -> list[str] | None:
    try:
        function()
    except RlctlError as error:
        return [type(error).__name__, error.reason, error.message]
    return None


#: By head module: its weight in float32, until new weights come.
_wide_heads: weakref.WeakKeyDictionary[torch.nn.Module, torch.Tensor] = weakref.WeakKeyDictionary()


def _keep_wide_heads() -> None:
    """Lets a CPU's head be widened once a version instead of once a token."""
    narrow = LogitsProcessor._apply_head

    def apply_head(self: Any, lm_head: Any, hidden: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        widens = self.head_dtype is torch.float32 and hidden.dtype is not torch.float32
        plain = isinstance(lm_head.quant_method, UnquantizedEmbeddingMethod)
        if hidden.device.type != "cpu" or not widens or not plain:
            return cast(torch.Tensor, narrow(self, lm_head, hidden, bias))
        if lm_head not in _wide_heads:
            _wide_heads[lm_head] = lm_head.weight.detach().float()
        logits = float_product(hidden, lm_head.weight, _wide_heads[lm_head])
        return logits if bias is None else logits.add_(bias)

    LogitsProcessor._apply_head = apply_head


def tied_modules(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Modules whose parameters are all those of a module before them."""
    seen: set[int] = set()
    tied = []
    for module in model.modules():
        own = [id(parameter) for parameter in module.parameters(recurse=False) if parameter.numel()]
        if own and all(one in seen for one in own):
            tied.append(module)
        seen.update(own)
    return tied


def discard(model: torch.nn.Module, model_config: Any) -> None:
    """Gives up a reload that broke off: layers that are not complete get back the tensors they had."""
    open_layers = [layer for layer in model.modules() if get_layerwise_info(layer).can_load()]
    if not open_layers:
        return
    for layer in open_layers:
        info = get_layerwise_info(layer)
        info.loaded_weights.clear()
        info.load_numel = 0
    finalize_layerwise_reload(model, model_config)


def keep_pending(model: torch.nn.Module) -> None:
    """Copies what incomplete layers hold of a bucket."""
    for layer in model.modules():
        for _, bound in get_layerwise_info(layer).loaded_weights:
            for name, value in bound.arguments.items():
                if isinstance(value, torch.Tensor) and not value.is_meta:
                    bound.arguments[name] = value.clone()


def incomplete(model: torch.nn.Module, tied: list[torch.nn.Module]) -> list[str]:
    """Modules that still wait for weights. A padded vocabulary never fills up, so that any load of it counts."""
    names = []
    for name, layer in model.named_modules():
        info = get_layerwise_info(layer)
        if not info.can_load() or layer in tied or is_deferred_attention_layer(layer):
            continue
        parameters = sum(parameter.numel() for parameter in layer.parameters(recurse=False))
        padded = hasattr(layer, "num_embeddings_padded")
        if parameters and (info.load_numel == 0 or (info.load_numel < parameters and not padded)):
            names.append(name)
    return names


def prepack_experts_each_time() -> None:
    """On a CPU: makes vLLM set the kernel of experts up anew, prepacking included, whenever they are loaded."""
    process = UnquantizedFusedMoEMethod.process_weights_after_loading

    def anew(method: Any, layer: Any) -> None:
        method.moe_kernel = None
        process(method, layer)

    UnquantizedFusedMoEMethod.process_weights_after_loading = anew


if current_platform.is_cpu():
    prepack_experts_each_time()
# It warns of every tied head and rotary table, at each sync; `incomplete` tells the weights that are truly missing.
logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").setLevel(logging.ERROR)
if BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(BACKEND, TransferEngine)
_keep_wide_heads()
lifeline.follow()
