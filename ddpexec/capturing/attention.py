"""Scaled dot-product attention counted as the one kernel it is on a GPU; fake and meta tensors would take it apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ddpexec.capturing.live import fp32_bytes, own_bytes
from ddpsim.workload.operators import Operator

Count = Callable[[Operator, Sequence[Tensor], Sequence[Tensor]], None]
"""Is given an operator, the tensors that it reads, and those that it writes."""

_ATTENTION = nn.functional.scaled_dot_product_attention
_DROPOUT = nn.functional.dropout


def product_flops(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> float:
    """Return half the operations of one product with the keys and one with the values, half of them where causal."""
    widths = query.shape[-1] + value.shape[-1]
    return query.numel() / query.shape[-1] * key.shape[-2] * widths * (0.5 if causal else 1.0)


class FusedAttention(TorchFunctionMode):
    """Replaces attention by an operator that computes nothing; only where no value matters.

    Attention whose mask needs a gradient is left as it is, for so it is on a GPU. Where bytes count as tensors are,
    dropout is the one kernel too that it is there.

    Args:
        count: is given each attention.
        element_bytes: of a tensor.
    """

    def __init__(self, count: Count, element_bytes: Callable[[Tensor], int] = fp32_bytes) -> None:
        super().__init__()
        self._count, self._element_bytes = count, element_bytes

    def __enter__(self) -> FusedAttention:
        # torch's own functions call it where a mode does not see it.
        nn.functional.scaled_dot_product_attention = self._attend
        if self._element_bytes is own_bytes:
            nn.functional.dropout = _drop
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        nn.functional.scaled_dot_product_attention, nn.functional.dropout = _ATTENTION, _DROPOUT

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is _ATTENTION:
            return self._attend(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
        is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
    ) -> Tensor:  # fmt: skip
        if isinstance(attn_mask, Tensor) and attn_mask.requires_grad:
            more: dict[str, Any] = {"scale": scale, "enable_gqa": enable_gqa}
            return _ATTENTION(query, key, value, attn_mask, dropout_p, is_causal, **more)
        if torch.is_autocast_enabled("cpu"):
            narrow = torch.get_autocast_dtype("cpu")
            query, key, value = (each.to(narrow) for each in (query, key, value))
        return _Attend.apply(query, key, value, self._count_traffic, bool(is_causal))  # type: ignore[no-untyped-call,no-any-return]

    def _count_traffic(self, flops: float, tensors: Sequence[Tensor], passes: int, read: Sequence[Tensor]) -> None:
        traffic = float(passes * sum(tensor.numel() * self._element_bytes(tensor) for tensor in tensors))
        query, narrow = tensors[0], self._element_bytes is own_bytes
        heads = query.shape[-3] if query.dim() > 3 else 0
        written = [tensor for tensor in tensors if all(tensor is not each for each in read)]
        self._count(Operator("gemm", flops, traffic, fp32=narrow, term="attention", heads=heads), read, written)


def _drop(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:  # noqa: A002
    return torch.native_dropout(input, p, training)[0] if training and 0 < p < 1 else input


class _Attend(torch.autograd.Function):
    """Two matrix products forward and five backward (Dao et al., FlashAttention), half of each where causal."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, count: Any, causal: bool) -> Tensor:
        product = product_flops(query, key, value, causal)
        # As flash attention lays it out: like the queries, so that joining the heads again is free.
        wide = query.shape[-1] == value.shape[-1]
        out = torch.empty_like(query) if wide else query.new_empty((*query.shape[:-1], value.shape[-1]))
        ctx.count, ctx.product = count, product
        ctx.save_for_backward(query, key, value, out, query.new_empty(query.shape[:-1], dtype=torch.float32))
        count(2 * product, (query, key, value, out), 1, (query, key, value))
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        saved = ctx.saved_tensors
        query, key, value, out, _ = saved
        ctx.count(5 * ctx.product, (query, key, value, out), 2, saved)
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value), None, None
