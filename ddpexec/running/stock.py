"""Stock torch DDP observed without changing its reduction path.

Its C++ reducer keeps its own hooks, buckets and allreduces. Beside them stand: a hook before and one after the
reducer's on each gradient, a callback ahead of the reducer's at the end of backward, forward hooks on the module, and a
process group that passes each allreduce on and stamps its launch and, from its future, its end.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable
from torch.autograd.graph import get_gradient_edge

from ddpexec.ddp.compiling import disable_compile
from ddpexec.ddp.parameters import ModelParameters
from ddpexec.errors import OptionError
from ddpexec.timing.observe import Observer
from ddpexec.timing.stopwatch import median_difference

REDUCER_ORDER = "_ddpexec_reducer_order"
"""Where a wrapped module says in which order its reducer was given the parameters."""


def buckets_of(ddp: nn.parallel.DistributedDataParallel, model: ModelParameters) -> list[tuple[int, ...]]:
    """Return the buckets in force in torch's reducer, as registration indices in launch order."""
    index_of: dict[Tensor, int] = {parameter: index for index, parameter in enumerate(model.tensors)}
    buckets = ddp.reducer._get_zeros_like_grad_buckets()
    return [tuple(index_of[parameter] for parameter in bucket.parameters()) for bucket in buckets]


def reducer_order(ddp: nn.parallel.DistributedDataParallel) -> list[int] | None:
    """Return parameters, by registration index, as torch's reducer numbers them; None where it does as they registered.

    A reducer that a tuner has made was given them in the order of their gradients.
    """
    order: list[int] | None = ddp.__dict__.get(REDUCER_ORDER)
    return order


class StockWatch:
    """Watches one `torch.nn.parallel.DistributedDataParallel` from its construction to `detach`, and after `attach`.

    Construct, attach and detach it between two iterations.

    Args:
        ddp: the wrapped module.
        model: its parameters, in torch's order.
        observer: takes the moments.
    """

    def __init__(self, ddp: nn.parallel.DistributedDataParallel, model: ModelParameters, observer: Observer) -> None:
        self._ddp, self._model, self._observer = ddp, model, observer
        self._begun: dict[int, Any] = {}
        self._callback_queued = False
        self._accumulators = [get_gradient_edge(parameter).node for parameter in model.tensors]
        self._undo: list[Callable[[], object]] = []
        self._group = StampedGroup(ddp.process_group, self._launched)
        self.attach()

    def attach(self) -> None:
        """Put hooks and the group that stamps in place, where they are not.

        Raises:
            OptionError: another observer stamps this module's steps, as a trace or a tuner does.
        """
        if self._undo:
            return
        if "_sync_buffers" in self._ddp.__dict__:
            what, remedy = "its steps are stamped by another observer", "trace and tune one after the other"
            raise OptionError(what, place="DistributedDataParallel", remedy=remedy)
        # One hook before the reducer's on each gradient (post-accumulate, run by the accumulator itself), one behind it
        # (on the accumulator's node, where the reducer has its own, which was registered first).
        for index, (parameter, node) in enumerate(zip(self._model.tensors, self._accumulators, strict=True)):
            before = partial(self._before, index)
            self._undo.append(parameter.register_post_accumulate_grad_hook(before).remove)  # type: ignore[no-untyped-call]
            self._undo.append(node.register_hook(partial(self._after, index)).remove)
        self._watch_forward()
        self._watch_buffers()
        self._ddp.reducer._update_process_group(self._group)
        self._undo.append(lambda: self._ddp.reducer._update_process_group(self._ddp.process_group))

    def detach(self) -> None:
        """Take everything away again; torch's DDP is as it was."""
        while self._undo:
            self._undo.pop()()
        self._begun.clear()
        self._callback_queued = False

    def name_buckets(self) -> None:
        """Fill in the parameters of the noted buckets, which allreduces do not name; call it after the iterations."""
        groups = buckets_of(self._ddp, self._model)
        for note in self._observer.notes:
            whole = len(note.buckets) == len(groups)
            for bucket in note.buckets:
                bucket.indices = groups[bucket.number] if whole else ()

    @disable_compile
    def _before(self, index: int, _: Tensor) -> None:
        self._begun[index] = self._observer.now()
        # Queued with the first gradient, so it stands ahead of the reducer's own callback, which is queued with the
        # last bucket: what is stamped here is the beginning of the reducer's wait.
        if not self._callback_queued and self._ddp.require_backward_grad_sync:
            self._callback_queued = True
            Variable._execution_engine.queue_callback(self._backward_ended)

    @disable_compile
    def _after(self, index: int, *_: Any) -> None:
        begin = self._begun.pop(index, None)
        if begin is not None:
            self._observer.hooks[index] = begin, self._observer.now()

    @disable_compile
    def _backward_ended(self) -> None:
        self._callback_queued = False
        if self._observer.note is not None:
            self._observer.note.finish = self._observer.now(), None

    @disable_compile
    def _launched(self, tensor: Tensor, moment: Any, work: Any) -> None:
        note = self._observer.note
        # An allreduce of int32, an element a parameter, is the reducer's map of used parameters and no bucket.
        if note is None or (tensor.dtype == torch.int32 and tensor.numel() == len(self._accumulators)):
            return
        size = tensor.numel() * tensor.element_size()
        self._observer.note_launch(len(note.buckets), (), size, moment, work)

    def _watch_forward(self) -> None:
        began: list[Any] = [None]

        @disable_compile
        def before(*_: Any) -> None:
            began[0] = self._observer.now()

        @disable_compile
        def after(*_: Any) -> None:
            self._observer.module(began[0])

        self._undo.append(self._ddp.module.register_forward_pre_hook(before).remove)
        self._undo.append(self._ddp.module.register_forward_hook(after).remove)

    def _watch_buffers(self) -> None:
        original = self._ddp._sync_buffers

        @disable_compile
        def synchronise() -> None:
            begin = self._observer.now()
            original()  # type: ignore[no-untyped-call]
            self._observer.buffers(begin)

        self._ddp._sync_buffers = synchronise  # type: ignore[method-assign]
        self._undo.append(lambda: self._ddp.__dict__.pop("_sync_buffers"))


def hook_cost_s(gradients: int = 100, rounds: int = 9) -> float:
    """Return the measured seconds that the two hooks on a gradient add to a backward, without the moments they take."""

    def backward(hooked: bool) -> Callable[[], object]:
        leaves = [torch.ones((), requires_grad=True) for _ in range(gradients)]
        nodes = [get_gradient_edge(leaf).node for leaf in leaves]
        if hooked:
            for leaf, node in zip(leaves, nodes, strict=True):
                leaf.register_post_accumulate_grad_hook(lambda _: None)  # type: ignore[no-untyped-call]
                node.register_hook(lambda *_: None)
        return partial(torch.autograd.backward, torch.stack(leaves).sum())

    cpu = torch.device("cpu")
    return median_difference(partial(backward, True), partial(backward, False), cpu, rounds) / gradients


class StampedGroup(dist.ProcessGroup):
    """Passes collectives on to `group` and reports each allreduce: its tensor, the moment before it, its work."""

    def __init__(self, group: dist.ProcessGroup, launched: Any) -> None:
        super().__init__(group.rank(), group.size())  # type: ignore[call-arg]
        self._inner, self._launched = group, launched
        self._now = launched.__self__._observer.now

    @disable_compile
    def allreduce(self, tensors: Any, options: Any = None) -> Any:  # type: ignore[override]
        """Pass an allreduce on."""
        begin = self._now()
        work = self._inner.allreduce(tensors) if options is None else self._inner.allreduce(tensors, options)
        self._launched(tensors[0], begin, work)
        return work

    @disable_compile
    def broadcast(self, tensors: Any, options: Any) -> Any:  # type: ignore[override]
        """Pass a broadcast on; the reducer makes one when it rebuilds its buckets."""
        return self._inner.broadcast(tensors, options)

    @disable_compile
    def getBackendName(self) -> str:  # noqa: N802
        """Return the backend's name."""
        return str(dist.get_backend(self._inner))
