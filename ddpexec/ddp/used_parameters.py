"""Which parameters a backward visits, and the errors for a backward that went otherwise than expected.

They are known by a search of the graph (`find_reachable`), by the used map that ranks share, or by a static graph's
counts (`StaticGraph`); `tie` gives all outputs of a forward one node, at which a search begins. Errors begin with the
words that torch's users know.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.autograd.graph import Node, get_gradient_edge
from torch.nn.parallel.distributed import _find_tensors
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from ddpexec.ddp.parameters import ModelParameters
from ddpexec.errors import ExecutionError, NeverReadyError, ReadyTwiceError
from ddpexec.groups.process_groups import Communicator, Work, wait


def find_reachable(output: object, indices: Mapping[Node, int]) -> set[int]:
    """Return the indices of those gradient accumulators that `output` depends on.

    Its tensors are found as torch finds them, in nested lists, tuples, dicts and dataclasses.
    """
    tensors = _find_tensors(output)  # type: ignore[no-untyped-call]
    stack = [get_gradient_edge(tensor).node for tensor in tensors if tensor.requires_grad]
    seen: set[Node] = set(stack)
    reachable: set[int] = set()
    while stack:
        node = stack.pop()
        if node in indices:
            reachable.add(indices[node])
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                stack.append(following)
    return reachable


def tie(output: Any, started: Callable[[], None], *, clone: bool) -> Any:
    """Pass every tensor of `output` through one autograd node, which calls `started` when its backward begins.

    Outputs that the loss does not use get undefined gradients, so that the parameters behind them are visited all
    the same. Tensors without a graph are passed as they are.
    """
    parts, spec = tree_flatten(output)
    leaves = list(_open_dataclasses(parts))
    passed = _Tie.apply(started, clone, *leaves)  # type: ignore[no-untyped-call]
    kept = (
        leaf if isinstance(leaf, Tensor) and leaf.grad_fn is None else tied
        for leaf, tied in zip(leaves, passed, strict=True)
    )
    return tree_unflatten([_rebuilt(part, kept) for part in parts], spec)


def _open_dataclasses(parts: Iterable[Any]) -> Iterator[Any]:
    """Yield `parts`, and instead of a dataclass, which torch's trees leave whole, the leaves of its fields."""
    for part in parts:
        if _is_record(part):
            for field in dataclasses.fields(part):
                yield from _open_dataclasses(tree_leaves(getattr(part, field.name)))
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


class UsedMap:
    """The parameters used since the last reduction: on this rank, and after `reduce` on any.

    Args:
        model: its parameters.
        communicator: of the ranks.
        send: sums a tensor over the ranks that train, given its place among the iteration's; None is `communicator`'s.

    Attributes:
        summed: by how many ranks each parameter was used in the last iteration; None before.
    """

    def __init__(
        self, model: ModelParameters, communicator: Communicator, send: Callable[[Tensor, int], Work] | None = None
    ) -> None:
        self._count = len(model.tensors)
        self._communicator, self._send = communicator, send or communicator.all_reduce
        self._device = communicator.device_for(model.tensors[0].device)
        self._used: set[int] = set()
        self._sum: tuple[Tensor, Work] | None = None
        self._counts: list[int] | None = None
        self.summed: Tensor | None = None

    def mark(self, index: int, parameter: Tensor) -> None:
        """Note that `parameter` was visited; it counts as used where it has a gradient."""
        if parameter.grad is not None:
            self._used.add(index)

    def reduce(self, position: int) -> None:
        """Start summing the map over ranks, as the `position`-th collective of the iteration."""
        # Pinned and new each time, as in torch's reducer: the copy waits in the stream behind backward, not the host.
        used = torch.zeros(self._count, dtype=torch.int32, pin_memory=self._device.type == "cuda")
        used[list(self._used)] = 1
        used = used.to(self._device, non_blocking=True)
        self._sum = used, self._send(used, position)

    def find_untouched(self, indices: Collection[int]) -> set[int]:
        """Return those of `indices` that no rank used; asks the other ranks only where this one used not all."""
        if self._counts is None:
            if self._sum is None or self._used.issuperset(indices):
                return set()
            self._counts = self._read()
        counts = self._counts
        return {index for index in indices if counts[index] == 0}

    def finish(self, *, keep: bool) -> None:
        """End the iteration; `keep` what ranks used for all that follow, as a static graph does."""
        if self._sum is not None:
            wait(self._sum[1], self._communicator, "the allreduce of the used-parameter bitmap")
            self._counts = self._read() if keep else None
            self.summed = self._sum[0]
        elif not keep:
            self._counts = None
        self._used.clear()
        self._sum = None

    def _read(self) -> list[int]:
        assert self._sum is not None
        wait(self._sum[1], self._communicator, "the allreduce of the used-parameter bitmap")
        counts: list[int] = self._sum[0].tolist()
        return counts


class StaticGraph:
    """How often each gradient comes in a backward that is always the same."""

    def __init__(self, model: ModelParameters, rank: int) -> None:
        self._model, self._rank = model, rank
        self._counts = [0] * len(model.tensors)
        self._remaining: list[int] = []
        self.counting = True

    @property
    def waiting(self) -> bool:
        """Whether visits were counted, and the end of that backward has not come."""
        return self.counting and any(self._counts)

    def restart(self) -> None:
        """Expect the counted visits once more."""
        self._remaining = list(self._counts)

    def visit(self, index: int) -> bool:
        """Note a visit and return whether it was this backward's last; always False while counting.

        Raises:
            ExecutionError: more visits than in the first backward.
        """
        if self.counting:
            self._counts[index] += 1
            return False
        if self._remaining[index] == 0:
            raise make_graph_changed_error(self._rank, index, self._model.names[index])
        self._remaining[index] -= 1
        return self._remaining[index] == 0

    def finish_counting(self) -> list[int]:
        """Take the counts as they are and return the parameters that were never visited."""
        self.counting = False
        return [index for index, count in enumerate(self._counts) if count == 0]


_UNFINISHED = (
    "Expected to have finished reduction in the prior iteration before starting a new one. This error indicates"
)
_STATIC = (
    " that your training graph has changed in this iteration, e.g., one parameter is used in first iteration, but then "
    "got unused in the second iteration. this is not compatible with static_graph set to True."
)
_UNUSED = " that your module has parameters that were not used in producing loss."
_REMEDY_UNUSED = (
    "enable unused parameter detection by passing the keyword argument `find_unused_parameters=True` to "
    "`DistributedDataParallel`, and make sure all `forward` function outputs participate in calculating loss"
)
_REMEDY_FOUND = (
    "Since `find_unused_parameters=True` is enabled, this likely means that not all `forward` function outputs "
    "participate in calculating loss; use them, or return tensors in lists, tuples, dicts or dataclasses only"
)
_DEBUG = (
    "for what torch itself can tell of the processes, set the environment variable TORCH_DISTRIBUTED_DEBUG to either "
    "INFO or DETAIL"
)


def make_never_ready_error(
    rank: int, missing: Sequence[int], names: Sequence[str], *, find_unused: bool, static: bool
) -> NeverReadyError:
    """Return the error for parameters `missing` whose gradients never came, by name and with the option to set."""
    indices = " ".join(str(index) for index in missing)
    message = (
        f"{_UNFINISHED}{_STATIC if static else _UNUSED}\n"
        f"Parameter indices which did not receive grad for rank {rank}: {indices}\n"
        f"Parameters which did not receive grad for rank {rank}: {', '.join(names[index] for index in missing)}\n"
    )
    if static:
        return NeverReadyError(message, remedy="leave static_graph out where control flow depends on the iteration")
    return NeverReadyError(message, remedy=f"{_REMEDY_FOUND if find_unused else _REMEDY_UNUSED}; {_DEBUG}")


def make_never_began_error(rank: int) -> NeverReadyError:
    """Return the error for gradients that came in a backward which a static graph did not see begin."""
    return NeverReadyError(
        f"static_graph=True, but the first backward on rank {rank} began at no output of forward, so that its "
        "gradients were not reduced",
        remedy="return tensors in lists, tuples, dicts or dataclasses, and call backward on what comes of them",
    )


def make_broken_off_error(rank: int, failure: str) -> ExecutionError:
    """Return the error for a backward that had all its gradients, but ended in `failure` before they were reduced."""
    reason = f": {failure}" if failure else ""
    return ExecutionError(
        f"{_UNFINISHED} that the previous backward on rank {rank} broke off before its gradients were reduced{reason}",
        remedy="mend what that backward raised, then wrap the module anew",
    )


def make_ready_twice_error(rank: int, index: int, name: str) -> ReadyTwiceError:
    """Return the error for a gradient that came twice in one backward."""
    return ReadyTwiceError(
        f"Expected to mark a variable ready only once: parameter {index} ({name}) was ready twice on rank {rank} in "
        "one backward",
        remedy="call backward once a forward; where activation checkpointing or a reentrant backward visits a "
        "parameter several times, use checkpoint(..., use_reentrant=False) or static_graph=True",
    )


def make_graph_changed_error(rank: int, index: int, name: str) -> ExecutionError:
    """Return the error for a parameter that a static graph did not use before."""
    return ExecutionError(
        f"Your training graph has changed in this iteration: parameter {index} ({name}) was unused in the first "
        f"iteration on rank {rank} and got used now, which is not compatible with static_graph set to True",
        remedy="leave static_graph out, or make the first iteration use every parameter",
    )
