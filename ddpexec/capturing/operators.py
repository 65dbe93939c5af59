"""One torch operator as what a roofline needs of it: arithmetic, memory traffic, and what it is part of."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from ddpexec.capturing.attention import product_flops
from ddpexec.capturing.live import fp32_bytes
from ddpsim.workload.operators import Operator, Product

ElementBytes = Callable[[Tensor], int]
"""Bytes of an element of a tensor: as it is, or as in fp32."""

_FREE = {"empty", "empty_like", "_unsafe_view", "scalar_tensor", "arange", "new_empty", "new_empty_strided"}
_FREE |= {"empty_strided", "_local_scalar_dense", "set_data"}
_CONVOLUTION = {"convolution", "convolution_backward"}
_READS_TWICE = {"native_batch_norm", "native_batch_norm_backward"}  # statistics first, then the values
_BY_INDEX = {"embedding", "embedding_dense_backward", "gather", "nll_loss_forward", "nll_loss_backward"}
_AUTOCAST_FP32 = {
    "native_layer_norm", "native_layer_norm_backward", "_softmax", "_safe_softmax", "_softmax_backward_data",
    "_log_softmax", "_log_softmax_backward_data", "nll_loss_forward", "nll_loss_backward",
    "embedding_dense_backward",
}  # fmt: skip
_FILLS = {"zero_", "fill_", "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"}
_OVERWRITES = {"copy_", *_FILLS}
"""Operators that do not read their first tensor, whose values they replace or whose shape alone they take."""
_CPU_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
_CPU_RECURRENT = "mkldnn_rnn_layer"
_TERMS = {
    "loss": ("nll_loss", "_log_softmax", "mse_loss", "binary_cross_entropy", "logsumexp"),
    "softmax": ("_softmax", "_safe_softmax"),
    "norms": ("native_layer_norm", "native_batch_norm", "native_group_norm", "_fused_rms_norm", "cudnn_batch_norm"),
    "dropout": ("native_dropout", "bernoulli"),
    "casts": ("_to_copy",),
}


def operator_of(
    func: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    out: Any,
    element_bytes: ElementBytes = fp32_bytes,
) -> Operator | None:
    """Return what an operator of torch, called and with its result, does; None where it launches no work.

    Arithmetic is torch's own formula where it has one; what has none, custom operators too, is its traffic alone.
    """
    name = func._schema.name.partition("::")[2]
    if func.is_view or name.rstrip("_") in _FREE or name in _FREE:
        return None
    flops = _flops(func, name, args, kwargs, out)
    kind = _kind(name, args, flops)
    as_it_is = element_bytes is not fp32_bytes
    read, written = tensors_in([args, kwargs]), tensors_in(out)
    if as_it_is and name in _OVERWRITES:
        read = [] if name in _FILLS else read[1:]
    traffic = traffic_of(name, read, written, element_bytes)
    return Operator(
        kind,
        flops,
        traffic,
        fp32=keeps_fp32(func) or as_it_is,
        term=_term(name, kind),
        product=_product(name, args),
    )


def keeps_fp32(func: Any) -> bool:
    """Return whether autocast computes the operator in fp32."""
    return func._schema.name.partition("::")[2] in _AUTOCAST_FP32


def tensors_in(tree: Any) -> list[Tensor]:
    """Return the tensors in nested arguments or results."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _term(name: str, kind: str) -> str:
    if kind != "memory":
        return "products" if kind == "gemm" else "convolutions"
    return next((term for term, names in _TERMS.items() if name.startswith(names)), "pointwise")


def _product(name: str, args: Sequence[Any]) -> Product | None:
    """Return the matrices that an operator multiplies."""
    if name not in ("mm", "bmm", "addmm", "baddbmm"):
        return None
    left, right = args[1:3] if name in ("addmm", "baddbmm") else args[:2]
    many = left.shape[0] if left.dim() == 3 else 1
    return many, left.shape[-2], right.shape[-1], left.shape[-1]


def _flops(func: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> float:
    if name in _CONVOLUTION and (flops := _convolution_flops(name, args, out)):
        return flops
    if count := flop_registry.get(func._overloadpacket):
        return float(count(*args, **kwargs, out_val=out))
    if name.startswith(_CPU_ATTENTION):
        first, causal, products = (1, 7, 5) if name.endswith("backward") else (0, 4, 2)
        query, key, value = args[first : first + 3]
        return products * product_flops(query, key, value, any(args[causal : causal + 1]))
    if name.startswith(_CPU_RECURRENT):
        steps = args[0].shape[0] * args[0].shape[1]
        products = 2 if name.endswith("backward") else 1
        return float(2 * products * steps * (args[1].numel() + args[2].numel()))
    return 0.0


def _kind(name: str, args: Sequence[Any], flops: float) -> str:
    if name in _CONVOLUTION:
        groups = args[-2] if name == "convolution_backward" else args[-1]
        return "grouped_conv" if groups > 1 else "conv"
    return "gemm" if flops else "memory"


def _convolution_flops(name: str, args: Sequence[Any], out: Any) -> float:
    """Return two for each multiply-add; torch's own counter overcounts the gradient of a grouped convolution."""
    if name == "convolution_backward":
        output, image, weight, transposed, products = *args[:3], args[7], sum(args[-1][:2])
    else:
        output, image, weight, transposed, products = out, *args[:2], args[6], 1
    places = image if transposed else output
    return float(2 * places.numel() * weight[0].numel() * products)


def traffic_of(
    name: str, read: Sequence[Tensor], written: Sequence[Tensor], element_bytes: ElementBytes = fp32_bytes
) -> float:
    """Return what the operator called `name` moves of the tensors it reads and of those it writes."""
    if name in _BY_INDEX:
        return 2.0 * sum(_bytes(tensor, element_bytes) for tensor in written)
    times = 2.0 if name in _READS_TWICE else 1.0
    return times * sum(_bytes(tensor, element_bytes) for tensor in read) + sum(
        _bytes(tensor, element_bytes) for tensor in written
    )


def _bytes(tensor: Tensor, element_bytes: ElementBytes) -> float:
    if tensor.layout == torch.sparse_coo:
        return _bytes(tensor._values(), element_bytes) + _bytes(tensor._indices(), element_bytes)
    if element_bytes is fp32_bytes:
        return float(tensor.numel() * element_bytes(tensor))
    distinct = math.prod(size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride)
    return float(distinct * element_bytes(tensor))
