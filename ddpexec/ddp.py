"""Distributed data parallel training with any bucket plan: torch's constructor, in Python over process groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ddpexec import construction
from ddpexec.buffers import BufferSynchroniser
from ddpexec.comm_hooks import Hook, check_hook
from ddpexec.observe import Observer
from ddpexec.parameters import ModelParameters, agree, broadcast_state, collect, verify
from ddpexec.reducer import Reducer, ReducerOptions
from ddpexec.unused import tensors_in, tie
from ddpsim.bucketing import BucketCaps, BucketPlan


class DistributedDataParallel(nn.Module):
    """Train `module` data parallel: the arguments of torch's class by the same names, and five more.

    Args:
        module: the module; parameters and buffers are made equal to rank 0's.
        plan: buckets to use from the first iteration on, in launch order, never rebuilt.
        first_bucket_mb: cap of the first bucket, in MiB, beside `bucket_cap_mb`.
        comm: `noop` sends nothing after construction: the compute-only floor.
        observer: takes the moments of each iteration; None, the default, takes none.
        process_group: one group, or a list of groups used in turn.

    Raises:
        ExecutionError: an option that contradicts another or does not apply, or ranks that differ.
    """

    def __init__(
        self,
        module: nn.Module,
        device_ids: Sequence[Any] | None = None,
        output_device: Any = None,
        dim: int = 0,
        broadcast_buffers: bool | None = None,
        init_sync: bool = True,
        process_group: Any = None,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        check_reduction: bool = False,
        gradient_as_bucket_view: bool = False,
        static_graph: bool = False,
        device_mesh: Any = None,
        skip_all_reduce_unused_params: bool = False,
        bucket_cap_mb_list: Sequence[float] | None = None,
        batched_grad_copy: bool = False,
        forward_sync_buffers: bool | None = None,
        *,
        plan: BucketPlan | None = None,
        first_bucket_mb: float | None = None,
        comm: str = "real",
        observer: Observer | None = None,
    ) -> None:
        super().__init__()
        self.communicator = construction.communicator_of(process_group, device_mesh, comm)
        self.process_group = self.communicator.main
        ignored = set(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
        self.parameters_to_ignore = ignored
        tensors = [parameter for name, parameter in module.named_parameters() if name not in ignored]
        construction.check_module(module, tensors, delayed=False)
        self.device_ids, self.output_device = construction.devices_of(tensors, device_ids, output_device)
        self.module, self.dim, self.device = module, dim, tensors[0].device
        sync = construction.buffer_sync(broadcast_buffers, forward_sync_buffers)
        self.forward_sync_buffers = sync.in_forward
        self.find_unused_parameters = find_unused_parameters
        self.gradient_as_bucket_view = gradient_as_bucket_view
        self.static_graph = static_graph
        self.require_backward_grad_sync = self.require_forward_param_sync = True
        caps = tuple(bucket_cap_mb_list) if bucket_cap_mb_list is not None else None
        options = ReducerOptions(
            caps=BucketCaps(bucket_cap_mb, first_bucket_mb, caps),
            gradient_as_bucket_view=gradient_as_bucket_view,
            find_unused_parameters=find_unused_parameters,
            static_graph=static_graph,
            skip_all_reduce_unused_params=skip_all_reduce_unused_params,
            batched_grad_copy=batched_grad_copy,
            rebuild=plan is None,
        )
        model = collect(module, ignored)
        first = construction.first_plan(
            model, options.caps, plan, find_unused=find_unused_parameters, static=static_graph
        )
        if init_sync:
            self._synchronise(model, first, buffers=sync.at_construction)
        self.reducer = Reducer(model, first, self.communicator, options, observer)
        self.observer = observer
        self.buffer_sync = BufferSynchroniser(module, self.communicator, ignored)

    @property
    def broadcast_buffers(self) -> bool:
        """Whether buffers are broadcast before each forward; torch's former name for `forward_sync_buffers`."""
        return self.forward_sync_buffers

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients locally; the first backward whose forward is outside reduces what has accumulated."""
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Call the module, with buckets, buffers and the search for unused parameters looked after."""
        with torch.autograd.profiler.record_function("DistributedDataParallel.forward"):
            inputs, kwargs = self._before_forward(inputs, kwargs)
            if self.observer is None:
                output = self.module(*inputs, **kwargs)
            else:
                begin = self.observer.now()
                output = self.module(*inputs, **kwargs)
                self.observer.module(begin)
            return self._after_forward(output)

    def register_comm_hook(self, state: object, hook: Hook) -> None:
        """Let `hook(state, bucket)` reduce each bucket; it returns a future of the reduced flat tensor."""
        check_hook(hook)
        self.reducer.hook = (hook, state)

    def _synchronise(self, model: ModelParameters, plan: BucketPlan, *, buffers: bool) -> None:
        verify(model, self.communicator, self.device)
        rows: list[object] = [list(bucket) for bucket in plan.groups()]
        agree(rows, [f"bucket {number}" for number in range(len(rows))], self.communicator, self.device)
        broadcast_state(self.module, self.communicator, self.parameters_to_ignore, buffers=buffers)

    def _before_forward(
        self, inputs: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if torch.is_grad_enabled():
            if self.require_backward_grad_sync:
                self.reducer.start_iteration()
            self.reducer.check_finished()
            self.reducer.rebuild()
        if self.require_forward_param_sync and self.forward_sync_buffers:
            begin = self.observer.now() if self.observer is not None else None
            if self.buffer_sync.broadcast() and self.observer is not None:
                self.observer.buffers(begin)
        if self.device_ids:
            moved, moved_kwargs = dist.utils._to_kwargs(inputs, kwargs, self.device, True)
            return moved[0], moved_kwargs[0]
        return inputs, kwargs

    def _after_forward(self, output: Any) -> Any:
        synced = torch.is_grad_enabled() and self.require_backward_grad_sync
        searching = self.find_unused_parameters and not self.static_graph
        if synced:
            self.reducer.prepare_backward(tensors_in(output) if searching else ())
        self.require_forward_param_sync = synced
        if searching or self.reducer.counting:
            return tie(output, self.reducer.backward_started, clone=True)
        return output
