"""What `_get_ddp_logging_data()` tells: torch's keys, with what a Python reducer can say of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ddpexec.ddp.bucket_schedule import BucketSchedule

_DTYPES = {"float32": "float", "float64": "double", "float16": "c10::Half", "bfloat16": "c10::BFloat16"}


def logging_data(
    module: nn.Module,
    reducer: BucketSchedule,
    *,
    devices: tuple[Sequence[int] | None, Any],
    first_bucket_sizes: str,
    sync_buffers: bool,
    joined: bool,
    failure: str,
) -> dict[str, str | int]:
    """Return torch's logging data.

    Args:
        module: that is wrapped.
        reducer: of its gradients.
        devices: `device_ids` and `output_device`.
        first_bucket_sizes: bytes of the buckets before any was rebuilt.
        sync_buffers: whether buffers are broadcast before a forward.
        joined: whether ranks may have different numbers of inputs.
        failure: what went wrong; empty where nothing has.
    """
    communicator, options, policy = reducer.communicator, reducer.options, reducer.model.policy
    device_ids, output_device = devices
    sizes = ", ".join(str(bucket.size_bytes) for bucket in reducer.plan.buckets)
    groups = ", ".join(" ".join(map(str, bucket.parameters)) for bucket in reducer.plan.buckets)
    dtypes = dict.fromkeys(_DTYPES.get(parameter.dtype, parameter.dtype) for parameter in policy)
    data: dict[str, str | int] = {
        "world_size": communicator.world_size,
        "rank": communicator.rank,
        "module_name": type(module).__name__,
        "device_ids": ", ".join(map(str, device_ids or ())),
        "output_device": -1 if output_device is None else output_device,
        "backend_name": communicator.backend,
        **reducer.stats.data,
        "dtypes": ", ".join(dtypes),
        "total_parameter_size_bytes": sum(parameter.size_bytes for parameter in policy),
        "num_parameter_tensors": len(policy),
        "bucket_cap_bytes": max(options.caps.limits()),
        "bucket_sizes": first_bucket_sizes,
        "num_buckets_reduced": len(reducer.launch_order),
        "broadcast_buffers": int(sync_buffers),
        "find_unused_parameters": int(options.find_unused_parameters),
        "gradient_as_bucket_view": int(options.gradient_as_bucket_view),
        "static_graph": int(options.static_graph),
        "has_sync_bn": int(any(isinstance(layer, nn.SyncBatchNorm) for layer in module.modules())),
        "is_multi_device_module": int(len(reducer.model.devices) > 1),
        "has_rebuilt_buckets": int(reducer.order.rebuilds > 0),
        "unused_parameter_size": sum(policy[index].size_bytes for index in reducer.unused),
        "prev_iteration_grad_ready_order_indices": ", ".join(map(str, reducer.arrival)),
        "join_uneven_inputs": int(joined),
        "torch_version": str(torch.__version__),
    }
    if reducer.order.rebuilds:
        data |= {"rebuilt_bucket_sizes": sizes, "rebuilt_per_bucket_param_indices": groups}
    if reducer.hooked:
        data["comm_hook"] = reducer.hook_name
    if failure:
        data |= {"has_error": 1, "error": failure}
    for variable in ("MASTER_PORT", "MASTER_ADDR", "CUDA_VISIBLE_DEVICES", "TORCH_DISTRIBUTED_DEBUG"):
        data[variable.lower()] = os.environ.get(variable, "N/A")
    if communicator.backend == "gloo":
        data["gloo_num_threads"] = 2
        for variable in ("GLOO_SOCKET_IFNAME", "GLOO_DEVICE_TRANSPORT"):
            data[variable.lower()] = os.environ.get(variable, "N/A")
    return data
