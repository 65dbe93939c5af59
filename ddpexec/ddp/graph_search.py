"""Which parameters an output does not depend on, and the node that ties all outputs of a forward together."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.autograd.graph import Node, get_gradient_edge
from torch.nn.parallel.distributed import _find_tensors
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten


def reachable(output: object, indices: Mapping[Node, int]) -> set[int]:
    """Return the indices of those gradient accumulators that `output` depends on.

    Its tensors are found as torch finds them, in nested lists, tuples, dicts and dataclasses.
    """
    tensors = _find_tensors(output)  # type: ignore[no-untyped-call]
    stack = [get_gradient_edge(tensor).node for tensor in tensors if tensor.requires_grad]
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


def tie(output: Any, started: Callable[[], None], *, clone: bool) -> Any:
    """Pass every tensor of `output` through one autograd node, which calls `started` when its backward begins.

    Outputs that the loss does not use get undefined gradients, so that the parameters behind them are visited all
    the same. Tensors without a graph are passed as they are.
    """
    parts, spec = tree_flatten(output)
    leaves = list(_opened(parts))
    passed = _Tie.apply(started, clone, *leaves)  # type: ignore[no-untyped-call]
    kept = (
        leaf if isinstance(leaf, Tensor) and leaf.grad_fn is None else tied
        for leaf, tied in zip(leaves, passed, strict=True)
    )
    return tree_unflatten([_rebuilt(part, kept) for part in parts], spec)


def _opened(parts: Iterable[Any]) -> Iterator[Any]:
    """Yield `parts`, and instead of a dataclass, which torch's trees leave whole, the leaves of its fields."""
    for part in parts:
        if _is_record(part):
            for field in dataclasses.fields(part):
                yield from _opened(tree_leaves(getattr(part, field.name)))
        else:
            yield part


def _rebuilt(part: Any, leaves: Iterator[Any]) -> Any:
    """Return the next of `leaves` in place of `part`, or a copy of it that holds the next ones."""
    if not _is_record(part):
        return next(leaves)
    copied = copy.copy(part)
    for field in dataclasses.fields(part):
        inside, spec = tree_flatten(getattr(part, field.name))
        value = tree_unflatten([_rebuilt(each, leaves) for each in inside], spec)
        object.__setattr__(copied, field.name, value)  # frozen ones too
    return copied


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


def _is_record(value: object) -> TypeGuard[Any]:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)
