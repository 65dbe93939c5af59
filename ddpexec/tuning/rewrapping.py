"""Which wrapped module is tuned, under which caps, and why another is refused."""

from __future__ import annotations

import torch
from torch import nn

from ddpexec.ddp.wrapper import DistributedDataParallel
from ddpsim.bucketing import BucketCaps
from ddpsim.common.units import MIB

Stock = nn.parallel.DistributedDataParallel
Wrapped = Stock | DistributedDataParallel


def find_wrapped(model: nn.Module) -> Wrapped | None:
    """Return the outermost module in `model` that is torch's DDP, or ours with or without a scheme; None without."""
    for module in model.modules():
        if isinstance(module, (Stock, DistributedDataParallel)):
            return module
    return None


def is_scheduled(wrapped: Wrapped) -> bool:
    """Return whether `wrapped` is under the schedule of a scheme."""
    return isinstance(wrapped, DistributedDataParallel) and wrapped.schedule is not None


def refusal(model: nn.Module) -> str | None:
    """Return why the buckets of `model` cannot be changed while it trains; None where they can."""
    wrapped = find_wrapped(model)
    if wrapped is None:
        return "it is wrapped in neither torch's DistributedDataParallel nor ddpexec's"
    if any(_is_compiled(module) for module in (*model.modules(), *wrapped.modules())):
        return "it is compiled: torch.compile has split its graph where the present buckets end"
    if wrapped._join_config.enable:
        return "it trains under join(), where ranks end at different steps"
    if isinstance(wrapped, DistributedDataParallel):
        return wrapped.fixed
    return _refuse_stock(wrapped)


def _is_compiled(module: nn.Module) -> bool:
    return isinstance(getattr(module, "_orig_mod", None), nn.Module) or module._compiled_call_impl is not None


def _refuse_stock(wrapped: Stock) -> str | None:
    reasons = {
        "this torch has no reducer that takes caps bucket by bucket": not hasattr(wrapped, "_bucket_config"),
        "mixed_precision registers a communication hook": wrapped.mixed_precision is not None,
        "the Python reducer of torch.compile has no buckets": getattr(wrapped, "_use_python_reducer", False),
        "delay_all_reduce_named_params has one allreduce of its own": bool(wrapped._delay_all_reduce_params),
        "its optimizer steps in backward, bucket by bucket": any(
            hasattr(parameter, "_in_backward_optimizers") for parameter in wrapped._module_parameters
        ),
        "a communication hook sends its buckets, which cannot be seen on their way": bool(_hook_name(wrapped)),
    }
    return next((reason for reason, so in reasons.items() if so), None)


def _hook_name(wrapped: Stock) -> str:
    if getattr(wrapped, "_comm_hooks", None):
        return str(wrapped._comm_hooks[0])
    return str(wrapped._get_ddp_logging_data().get("comm_hook", ""))  # type: ignore[no-untyped-call]


def caps_in_force(wrapped: Wrapped) -> BucketCaps:
    """Return the caps in force of `wrapped`: the constructor's, or those set since."""
    if isinstance(wrapped, DistributedDataParallel):
        return wrapped.caps
    if wrapped.bucket_bytes_cap_list:
        return BucketCaps(bucket_cap_mb_list=tuple(map(_mib, wrapped.bucket_bytes_cap_list)))
    return BucketCaps(None if wrapped.bucket_bytes_cap_default else _mib(wrapped.bucket_bytes_cap))


def _mib(size_bytes: int) -> float:
    """Return the shortest number of MiB of which torch makes so many bytes: it cuts fractions of a byte off.

    >>> _mib(5242), _mib(26214400)
    (0.005, 25.0)
    """
    exact = (size_bytes + 0.5) / MIB
    short = (round(exact, digits) for digits in range(12))
    return next((cap for cap in short if int(cap * MIB) == size_bytes), exact)


def device_name(device: torch.device) -> str:
    """Return `cpu`, or the name of a GPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
