"""What else torch's class shows: methods that other code calls although they are private, as functions of a wrapper.

The wrapper has each by torch's name; see torch's class for what it is for.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from ddpexec.ddp.active_schedule import ActiveSchedule
from ddpexec.ddp.parameters import BROADCAST_BYTES
from ddpexec.errors import ExecutionError, OptionError

_DTYPES = {"float32": "float", "float64": "double", "float16": "c10::Half", "bfloat16": "c10::BFloat16"}


def register_buffer_hook(ddp: Any, state: Any, hook: Callable[..., Any], comm_hook_location: Any = None) -> None:
    """Let `hook(state, named buffers)` synchronise buffers."""
    if not callable(hook):
        raise TypeError(f"hook must be callable, got {type(hook).__name__}")
    after = comm_hook_location is None or comm_hook_location.name == "POST_FORWARD"
    ddp.buffer_sync.hook, ddp.buffer_sync.after_forward = (hook, state), after


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
    tensors = list(ddp.buffer_sync.list_named().values()) if bufs is None else list(bufs)
    size = BROADCAST_BYTES if bucket_size is None else bucket_size
    dist._broadcast_coalesced(ddp.process_group, tensors, size, authoritative_rank)  # type: ignore[attr-defined]


def reducer_parameters(ddp: Any) -> tuple[list[nn.Parameter], list[bool]]:
    """Return the parameters that are reduced, and whether the gradient of each is sparse."""
    model = ddp.reducer.model
    return list(model.tensors), [parameter.sparse for parameter in model.policy]


def set_static_graph(ddp: Any) -> None:
    """Train as if `static_graph=True` had been given."""
    if ddp.static_graph:
        warnings.warn("You've set static_graph to be True, no need to set it again.", stacklevel=2)
        return
    if ddp.schedule is not None:
        what = f"scheme {ddp.schedule.scheme} is told of a static graph when it is made"
        raise OptionError(what, remedy="give static_graph=True")
    if ddp.reducer.iteration:
        what = "set_static_graph() should be called before training loop starts"
        error = ExecutionError(what, remedy="give static_graph=True")
        ddp.executor.note_failure(error)
        raise error
    ddp.static_graph = ddp.reducer.options.static_graph = True
    ddp.executor.set_static_graph()
    ddp.reducer.order = ddp._order_policy(ddp.reducer.model, planned=ddp._plan is not None)


def set_sink_clone(ddp: Any, val: bool) -> None:
    """Say whether outputs that are tied together are cloned."""
    ddp.clone_outputs = val


def check_finished(ddp: Any) -> None:
    """Raise unless the previous backward reduced everything it began to reduce."""
    ddp.executor.check_finished()


def remove_hooks(ddp: Any) -> None:
    """Take the gradient hooks away; nothing is reduced any more."""
    ddp.executor.remove_hooks()


def logging_data(ddp: Any) -> dict[str, str | int]:
    """Return torch's logging data: its keys, with what a Python reducer can say of them."""
    reducer: ActiveSchedule = ddp.reducer
    communicator, options, policy = reducer.communicator, reducer.options, reducer.model.policy
    sizes = ", ".join(str(bucket.size_bytes) for bucket in reducer.plan.buckets)
    groups = ", ".join(" ".join(map(str, bucket.parameters)) for bucket in reducer.plan.buckets)
    dtypes = dict.fromkeys(_DTYPES.get(parameter.dtype, parameter.dtype) for parameter in policy)
    data: dict[str, str | int] = {
        "world_size": communicator.world_size,
        "rank": communicator.rank,
        "module_name": type(ddp.module).__name__,
        "device_ids": ", ".join(map(str, ddp.device_ids or ())),
        "output_device": -1 if ddp.output_device is None else ddp.output_device,
        "backend_name": communicator.backend,
        **reducer.stats.data,
        "dtypes": ", ".join(dtypes),
        "total_parameter_size_bytes": sum(parameter.size_bytes for parameter in policy),
        "num_parameter_tensors": len(policy),
        "bucket_cap_bytes": max(options.caps.limits()),
        "bucket_sizes": ddp.first_bucket_sizes,
        "num_buckets_reduced": len(reducer.launch_order),
        "broadcast_buffers": int(ddp.forward_sync_buffers),
        "find_unused_parameters": int(options.find_unused_parameters),
        "gradient_as_bucket_view": int(options.gradient_as_bucket_view),
        "static_graph": int(options.static_graph),
        "has_sync_bn": int(any(isinstance(layer, nn.SyncBatchNorm) for layer in ddp.module.modules())),
        "is_multi_device_module": int(len(reducer.model.devices) > 1),
        "has_rebuilt_buckets": int(reducer.rebuilds > 0),
        "unused_parameter_size": sum(policy[index].size_bytes for index in reducer.unused),
        "prev_iteration_grad_ready_order_indices": ", ".join(map(str, reducer.arrival)),
        "join_uneven_inputs": int(ddp._join_config.enable),
        "torch_version": str(torch.__version__),
    }
    # torch has these keys only once there is something to say.
    if reducer.rebuilds:
        data |= {"rebuilt_bucket_sizes": sizes, "rebuilt_per_bucket_param_indices": groups}
    if reducer.hooked:
        data["comm_hook"] = reducer.hook_name
    if ddp.executor.failure:
        data |= {"has_error": 1, "error": ddp.executor.failure}
    for variable in ("MASTER_PORT", "MASTER_ADDR", "CUDA_VISIBLE_DEVICES", "TORCH_DISTRIBUTED_DEBUG"):
        data[variable.lower()] = os.environ.get(variable, "N/A")
    if communicator.backend == "gloo":
        # torch's `ProcessGroupGloo` has two threads.
        data["gloo_num_threads"] = 2
        for variable in ("GLOO_SOCKET_IFNAME", "GLOO_DEVICE_TRANSPORT"):
            data[variable.lower()] = os.environ.get(variable, "N/A")
    return data
