"""Count a model's operators on the meta device: arithmetic, memory traffic, and where gradients become complete."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from ddpexec.ddp.parameters import collect
from ddpexec.describe import describe_buffers
from ddpexec.models import build
from ddpexec.models.training import TrainingModel
from ddpsim.workload.estimate import ModelShape, Operator

_FREE = {"empty", "empty_like", "_unsafe_view", "scalar_tensor", "arange"}
_GEMM = {"mm", "addmm", "bmm", "baddbmm"}
_CONVOLUTION = {"convolution", "convolution_backward"}
_READS_TWICE = {"native_batch_norm", "native_batch_norm_backward"}  # statistics first, then the values
_BY_INDEX = {"embedding", "embedding_dense_backward", "gather", "nll_loss_forward", "nll_loss_backward"}
_AUTOCAST_FP32 = {
    "native_layer_norm", "native_layer_norm_backward", "_softmax", "_safe_softmax", "_softmax_backward_data",
    "_log_softmax", "_log_softmax_backward_data", "nll_loss_forward", "nll_loss_backward",
    "embedding_dense_backward",
}  # fmt: skip


def model_shape(name: str, batch_size: int | None = None) -> ModelShape:
    """Return the operators of one training step of the shipped model `name`."""
    return shape_of(build(name, "meta"), batch_size)


def shape_of(model: TrainingModel, batch_size: int | None = None) -> ModelShape:
    """Return the operators of one training step of a model on the meta device.

    A gradient belongs to the last operator before its post-accumulate hook; gradients start as None, so accumulation
    itself is free.
    """
    batch = model.make_batch(batch_size, "meta")
    counter = _Counter()
    parameters = collect(model.module)
    for index, parameter in enumerate(parameters.tensors):
        parameter.register_post_accumulate_grad_hook(counter.gradient_hook(index))  # type: ignore[no-untyped-call]
    with counter, _FusedAttentionMode(counter):
        loss = model.loss(model.module(*batch.inputs), batch)
        forward, counter.operators = counter.operators, []
        loss.backward()  # type: ignore[no-untyped-call]
    return ModelShape(
        model.name,
        batch_size or model.batch_size,
        model.sample,
        parameters.policy,
        describe_buffers(model.module),
        tuple(forward),
        tuple(counter.operators),
    )


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operators: list[Operator] = []

    def gradient_hook(self, index: int) -> Any:
        def hook(parameter: Tensor) -> None:
            last = self.operators[-1]
            self.operators[-1] = Operator(
                last.kind, last.flops, last.traffic_bytes, last.fp32, (*last.gradients, index)
            )

        return hook

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name = func._schema.name.partition("::")[2]
        if not func.is_view and name.rstrip("_") not in _FREE and name not in _FREE:
            flops = _convolution_flops(name, args, out) if name in _CONVOLUTION else 0.0
            if not flops and (count := flop_registry.get(func._overloadpacket)):
                flops = float(count(*args, **kwargs, out_val=out))
            traffic = _traffic(name, args, kwargs, out)
            self.operators.append(Operator(_kind(name, args), flops, traffic, name in _AUTOCAST_FP32))
        return out


class _FusedAttentionMode(TorchFunctionMode):
    """Counts scaled dot-product attention as the one kernel it is on a GPU; meta tensors would take it apart."""

    def __init__(self, counter: _Counter) -> None:
        super().__init__()
        self._counter = counter

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention:
            causal = bool((kwargs or {}).get("is_causal", False))
            return _FusedAttention.apply(*args[:3], self._counter, causal)  # type: ignore[no-untyped-call]
        return func(*args, **(kwargs or {}))


class _FusedAttention(torch.autograd.Function):
    """Two matrix products forward and five backward (Dao et al., FlashAttention), half of each where causal."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, counter: _Counter, causal: bool) -> Tensor:
        ctx.counter, ctx.like = counter, (query, key, value)
        product = 2.0 * query.numel() * key.shape[-2] * (0.5 if causal else 1.0)
        ctx.product = product
        counter.operators.append(Operator("gemm", 2 * product, 4 * _bytes(query)))
        return torch.empty_like(query)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        query, key, value = ctx.like
        ctx.counter.operators.append(Operator("gemm", 5 * ctx.product, 8 * _bytes(query)))
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value), None, None


def _kind(name: str, args: Sequence[Any]) -> str:
    if name in _CONVOLUTION:
        groups = args[-2] if name == "convolution_backward" else args[-1]
        return "grouped_conv" if groups > 1 else "conv"
    return "gemm" if name in _GEMM else "memory"


def _convolution_flops(name: str, args: Sequence[Any], out: Any) -> float:
    """Return two for each multiply-add; torch's own counter overcounts the gradient of a grouped convolution."""
    output, weight = (args[0], args[2]) if name == "convolution_backward" else (out, args[1])
    products = sum(args[-1][:2]) if name == "convolution_backward" else 1
    return float(2 * output.numel() * weight[0].numel() * products)


def _traffic(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> float:
    read, written = _tensors([args, kwargs]), _tensors(out)
    if name in _BY_INDEX:
        return 2.0 * sum(map(_bytes, written))
    return sum(map(_bytes, read)) * (2.0 if name in _READS_TWICE else 1.0) + sum(map(_bytes, written))


def _tensors(tree: Any) -> Iterable[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _bytes(tensor: Tensor) -> float:
    return float(tensor.numel() * tensor.element_size())
