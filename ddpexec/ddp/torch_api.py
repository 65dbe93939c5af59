"""What else torch's class shows: methods that other code calls although they are private, as functions of a wrapper.

The wrapper has each by torch's name; see torch's class for what it is for.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from ddpexec.ddp.logging_data import logging_data
from ddpexec.ddp.parameters import BROADCAST_BYTES
from ddpexec.errors import ExecutionError, OptionError


def set_ignored(module: nn.Module, params_and_buffers_to_ignore: Collection[str]) -> None:
    """Leave parameters and buffers of these names alone where `module` is wrapped."""
    module._ddp_params_and_buffers_to_ignore = params_and_buffers_to_ignore  # type: ignore[assignment]
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if name in params_and_buffers_to_ignore:
            tensor._ddp_ignored = True  # type: ignore[attr-defined]


def parameters_of(module: nn.Module, named_params: bool = False) -> Iterator[Any]:
    """Yield the parameters that are not ignored."""
    for name, parameter in module.named_parameters():
        if not hasattr(parameter, "_ddp_ignored"):
            yield (name, parameter) if named_params else parameter


def bucket_bytes_cap(ddp: Any) -> int:
    """Return the largest limit of a bucket, in bytes."""
    return int(max(ddp.caps.limits()))


def bucket_bytes_cap_list(ddp: Any) -> list[int]:
    """Return the limits of `bucket_cap_mb_list` in bytes; empty without it."""
    return list(ddp.caps.limits()) if ddp.caps.bucket_cap_mb_list is not None else []


def ddp_logging_data(ddp: Any) -> dict[str, str | int]:
    """Return torch's logging data."""
    return logging_data(
        ddp.module, ddp.reducer, devices=(ddp.device_ids, ddp.output_device),
        first_bucket_sizes=ddp.first_bucket_sizes, sync_buffers=ddp.forward_sync_buffers,
        joined=ddp._join_config.enable, failure=ddp.executor.failure,
    )  # fmt: skip


def register_buffer_hook(ddp: Any, state: Any, hook: Callable[..., Any], comm_hook_location: Any = None) -> None:
    """Let `hook(state, named buffers)` synchronise buffers."""
    if not callable(hook):
        raise TypeError(f"hook must be callable, got {type(hook).__name__}")
    after = comm_hook_location is None or comm_hook_location.name == "POST_FORWARD"
    ddp.buffer_sync.set_hook(hook, state, after_forward=after)


def register_builtin_hook(ddp: Any, comm_hook_type: Any) -> None:
    """Let one of torch's two built-in hooks reduce the buckets."""
    # torch's C++ reducer has these two built in; its Python package has the same two.
    hooks = {"ALLREDUCE": default_hooks.allreduce_hook, "FP16_COMPRESS": default_hooks.fp16_compress_hook}
    if getattr(comm_hook_type, "name", None) not in hooks:
        raise OptionError(
            f"{comm_hook_type!r} is not a built-in communication hook",
            remedy="give dist.BuiltinCommHookType.ALLREDUCE or FP16_COMPRESS",
        )
    ddp.register_comm_hook(ddp.process_group, hooks[comm_hook_type.name])
    ddp.reducer.hook_name = str(comm_hook_type)


def set_sample_rate(ddp: Any, sample_rate: int) -> None:
    """Sample the times of each so-manieth iteration."""
    if sample_rate < 1:
        raise OptionError(
            f"DDP runtime logging sample rate should be equal or greater than 1, it is {sample_rate}",
            remedy="give after how many iterations one is sampled",
        )
    ddp.reducer.stats.rate = sample_rate


def broadcast_coalesced(
    ddp: Any, bufs: Sequence[Tensor] | None = None, bucket_size: int | None = None, authoritative_rank: int = 0
) -> None:
    """Broadcast buffers, the wrapped module's where none are given."""
    tensors = list(ddp.buffer_sync.named().values()) if bufs is None else list(bufs)
    size = BROADCAST_BYTES if bucket_size is None else bucket_size
    dist._broadcast_coalesced(ddp.process_group, tensors, size, authoritative_rank)  # type: ignore[attr-defined]


def reducer_parameters(ddp: Any) -> tuple[list[nn.Parameter], list[bool]]:
    """Return the parameters that are reduced, and whether the gradient of each is sparse."""
    model = ddp.reducer.model
    return list(model.tensors), [parameter.sparse for parameter in model.policy]


def names_of(ddp: Any, parameters: Sequence[nn.Parameter]) -> dict[int, str]:
    """Return the name of each parameter, by its place among `parameters`."""
    model = ddp.reducer.model
    places = {parameter: index for index, parameter in enumerate(parameters)}
    for tensor, name in zip(model.tensors, model.names, strict=True):
        if tensor not in places:
            raise ValueError(f"Param with name {name} found in module parameters, but not DDP parameters.")
    if len(places) != len(model.names):
        raise ValueError(
            "Expected param to name mapping to cover all parameters, but got conflicting lengths: "
            f"{len(places)} vs {len(model.names)}."
        )
    return {places[tensor]: name for tensor, name in zip(model.tensors, model.names, strict=True)}


def register_fused_optimizer(ddp: Any, optim: type, *args: Any, optim_params: Any = None, **kwargs: Any) -> None:
    """Let an optimizer step on each parameter as its bucket is reduced."""
    from torch.distributed.algorithms._optimizer_overlap.optimizer_overlap import _as_overlapped_optim

    _as_overlapped_optim(optim, optim_params, *args, **kwargs).register_ddp(ddp)


def set_static_graph(ddp: Any) -> None:
    """Train as if `static_graph=True` had been given."""
    if ddp.static_graph:
        warnings.warn("You've set static_graph to be True, no need to set it again.", stacklevel=2)
        return
    if ddp.reducer.iteration:
        what = "set_static_graph() should be called before training loop starts"
        error = ExecutionError(what, remedy="give static_graph=True")
        ddp.executor.note_failure(error)
        raise error
    ddp.static_graph = ddp.reducer.options.static_graph = True
    ddp.executor.set_static_graph()
    ddp.reducer.order = ddp.order_policy(ddp.reducer.model)


def update_process_group(ddp: Any, new_process_group: Any) -> None:
    """Reduce over another group from now on."""
    ddp.use_process_group(new_process_group)


def set_sink_clone(ddp: Any, val: bool) -> None:
    """Say whether outputs that are tied together are cloned."""
    ddp.clone_outputs = val


def check_finished(ddp: Any) -> None:
    """Raise unless the previous backward reduced everything it began to reduce."""
    ddp.executor.check_finished()


def remove_hooks(ddp: Any) -> None:
    """Take the gradient hooks away; nothing is reduced any more."""
    ddp.executor.remove_hooks()


def syncs_buffers(ddp: Any) -> bool:
    """Return whether buffers are broadcast before each forward, as torch's former `broadcast_buffers`."""
    return bool(ddp.forward_sync_buffers)


def sync_buffers(ddp: Any, value: bool) -> None:
    """Say whether buffers are broadcast before each forward."""
    ddp.forward_sync_buffers = value
