"""Which parameters an output does not depend on, and the node that ties all outputs of a forward together."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.utils._pytree import tree_flatten, tree_unflatten


def tensors_in(value: object) -> Iterator[Tensor]:
    """Yield the tensors in nested lists, tuples, dicts and dataclasses."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        yield from itertools.chain.from_iterable(map(tensors_in, value))
    elif isinstance(value, dict):
        yield from itertools.chain.from_iterable(map(tensors_in, value.values()))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors_in(getattr(value, field.name))


def reachable(outputs: Iterable[Tensor], indices: Mapping[Node, int]) -> set[int]:
    """Return the indices of those gradient accumulators that `outputs` depend on."""
    stack = [output.grad_fn for output in outputs if output.grad_fn is not None]
    stack += [_accumulator(output) for output in _leaves(outputs)]
    seen: set[Node] = set(stack)
    found: set[int] = set()
    while stack:
        node = stack.pop()
        if node in indices:
            found.add(indices[node])
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                stack.append(following)
    return found


def gradient_accumulator(parameter: Tensor) -> Node:
    """Return the autograd node that adds to `parameter.grad`."""
    with torch.enable_grad():
        view = parameter.view_as(parameter)
    if view.grad_fn is None:
        raise ValueError("the parameter needs no gradient")
    return view.grad_fn.next_functions[0][0]  # type: ignore[return-value]


def tie(output: Any, started: Callable[[], None], *, clone: bool) -> Any:
    """Pass every tensor of `output` through one autograd node, which calls `started` when its backward begins.

    Outputs that the loss does not use get undefined gradients, so that the parameters behind them are visited all
    the same. Tensors without a graph are passed as they are.
    """
    leaves, spec = tree_flatten(output)
    passed = _Tie.apply(started, clone, *leaves)  # type: ignore[no-untyped-call]
    kept = [
        leaf if isinstance(leaf, Tensor) and leaf.grad_fn is None else tied
        for leaf, tied in zip(leaves, passed, strict=True)
    ]
    return tree_unflatten(kept, spec)


class _Tie(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, started: Callable[[], None], clone: bool, *inputs: Any) -> tuple[Any, ...]:
        ctx.set_materialize_grads(False)
        ctx.started = started
        return tuple(i.clone() if isinstance(i, Tensor) else i for i in inputs) if clone else inputs

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        ctx.started()
        return (None, None, *gradients)


def _leaves(outputs: Iterable[Tensor]) -> list[Tensor]:
    return [output for output in outputs if output.grad_fn is None and output.requires_grad]


def _accumulator(leaf: Tensor) -> Node:
    return gradient_accumulator(leaf)
