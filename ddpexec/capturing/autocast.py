"""CUDA's autocast on any machine: what a step keeps alive under it, and the 16-bit type that it would cast to there.

Fake tensors of the processor take the processor's autocast. Its list of 16-bit operators is CUDA's; the operators that
CUDA runs in fp32 (`aten/src/ATen/autocast_mode.h`, torch 2.13) are added to it here.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

_FP32_TEXT = """
acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar
pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm group_norm norm.Scalar norm.ScalarOpt_dim
nuclear_norm cosine_similarity cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss
smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss
triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp prod
prod.dim_int softmax.int log_softmax.int cumprod cumsum sum sum.dim_IntList
"""
_FP32 = tuple(_FP32_TEXT.split())

_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)


_ON_GPUS = "_ddpexec_dtype_on_gpus"
"""Where an autocast made within `watch_dtypes` keeps what it casts to on a GPU; None where it is off."""
_NOT_IN_BACKWARD = -1
"""torch's number of the running backward pass, where there is none."""


@contextmanager
def watch_dtypes() -> Iterator[set[torch.dtype]]:
    """Yield a set that is filled with the types that a GPU would cast to in the autocasts that a step enters.

    An autocast that names no type has the one of CUDA, float16, and not that of the processor the step is counted on,
    as `torch.autocast(x.device.type)` there. One made or entered before the context counts where it is
    CUDA's. Those that backward enters, as checkpoints do with all that was set in forward, are no words of the user's.
    """
    plain, dtypes = torch.autocast, set[torch.dtype]()
    if torch.is_autocast_enabled("cuda"):
        dtypes.add(torch.get_autocast_dtype("cuda"))
    make, enter = plain.__init__, plain.__enter__

    @wraps(make)
    def made(
        self: Any, device_type: str, dtype: torch.dtype | None = None, enabled: bool = True, *args: Any, **kwargs: Any
    ) -> None:
        make(self, device_type, dtype, enabled, *args, **kwargs)
        setattr(self, _ON_GPUS, (dtype or torch.get_autocast_dtype("cuda")) if enabled else None)

    @wraps(enter)
    def entered(self: Any) -> Any:
        cast_to = getattr(self, _ON_GPUS, self.fast_dtype if self.device == "cuda" else None)
        if cast_to is not None and torch._C._current_graph_task_id() == _NOT_IN_BACKWARD:
            dtypes.add(cast_to)
        return enter(self)  # type: ignore[no-untyped-call]

    plain.__init__, plain.__enter__ = made, entered  # type: ignore[method-assign]
    try:
        yield dtypes
    finally:
        plain.__init__, plain.__enter__ = make, enter  # type: ignore[method-assign]


@contextmanager
def autocasting() -> Iterator[None]:
    """Let `torch.autocast("cuda")` within the context do to tensors of the processor what it does to a GPU's."""
    library = torch.library.Library("aten", "IMPL", "AutocastCPU")  # type: ignore[no-untyped-call]
    enter, plain = torch.autocast.__init__, torch.autocast

    def as_processor(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        enter(self, "cpu" if device_type == "cuda" else device_type, *args, **kwargs)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*overrid")
        for name in _FP32:
            library.impl(name, _wrap_in_fp32(name))  # type: ignore[no-untyped-call]
    plain.__init__ = as_processor  # type: ignore[method-assign]
    try:
        yield
    finally:
        plain.__init__ = enter  # type: ignore[method-assign]
        library._destroy()  # type: ignore[no-untyped-call]


def _wrap_in_fp32(name: str) -> Any:
    packet, _, overload = name.partition(".")
    operator = getattr(getattr(torch.ops.aten, packet), overload or "default")

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_KEYS):
            args, kwargs = tree_map_only(Tensor, _widen, (args, kwargs))
            return operator(*args, **kwargs)

    return call


def _widen(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor
