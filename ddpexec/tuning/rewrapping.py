"""Other buckets for a wrapped module between two of its steps: torch's DDP gets a new reducer, ours another plan.

The module stays the object that it is: its name in the script, its hooks, `no_sync` and `state_dict` go on as before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddpexec.ddp.wrapper import DistributedDataParallel
from ddpsim.bucketing import BucketCaps
from ddpsim.units import MIB

Stock = nn.parallel.DistributedDataParallel
Groups = Sequence[Sequence[int]]


def find_wrapped(model: nn.Module) -> Stock | DistributedDataParallel | None:
    """Return the outermost module in `model` that is torch's DDP or ours; None where there is none."""
    for module in model.modules():
        if isinstance(module, (Stock, DistributedDataParallel)):
            return module
    return None


def refusal(model: nn.Module) -> str | None:
    """Return why the buckets of `model` cannot be changed while it trains; None where they can."""
    wrapped = find_wrapped(model)
    if wrapped is None:
        return "it is wrapped in neither torch's DistributedDataParallel nor ddpexec's"
    if any(_compiled(module) for module in (*model.modules(), *wrapped.modules())):
        return "it is compiled: torch.compile has split its graph where the present buckets end"
    if wrapped._join_config.enable:
        return "it trains under join(), where ranks end at different steps"
    if isinstance(wrapped, DistributedDataParallel):
        return _refused_ours(wrapped)
    return _refused_stock(wrapped)


def _compiled(module: nn.Module) -> bool:
    return isinstance(getattr(module, "_orig_mod", None), nn.Module) or module._compiled_call_impl is not None


def _refused_ours(wrapped: DistributedDataParallel) -> str | None:
    if wrapped.reducer.hooked:
        return "a communication hook sends its buckets, which cannot be seen on their way"
    if wrapped.drop is not None or not wrapped.in_plain_order:
        return "its buckets change from step to step by other rules: drop, rebuild or a plan of its own"
    if len(wrapped.communicator.groups) > 1:
        return "it has several process groups, and what one sends says nothing of the others"
    return None


def _refused_stock(wrapped: Stock) -> str | None:
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


def rewrap(wrapped: Stock | DistributedDataParallel, caps: BucketCaps, groups: Groups) -> None:
    """Let `wrapped` reduce by these buckets from its next forward on; every rank at the same step.

    Args:
        wrapped: between two steps: its last backward has ended.
        caps: as its constructor would have been given them.
        groups: the buckets that they give, by registration index, in launch order.
    """
    if isinstance(wrapped, DistributedDataParallel):
        wrapped.use_caps(caps, groups)
    else:
        _rewrap_stock(wrapped, caps, groups)


def _rewrap_stock(wrapped: Stock, caps: BucketCaps, groups: Groups) -> None:
    """Give torch's DDP a new reducer, as its own constructor makes it, but with the rebuilt buckets from the start.

    torch begins with one bucket and learns the order in the first backward; that order is known here, so no step goes
    without overlap. The new reducer still rebuilds once, as any does, which leaves the same buckets.
    """
    arguments: dict[str, Any] = caps.torch_arguments()
    cap, listed = arguments.get("bucket_cap_mb"), arguments.get("bucket_cap_mb_list")
    config = type(wrapped._bucket_config).create(bucket_cap_mb=cap, bucket_cap_mb_list=listed, use_python_reducer=False)
    former = wrapped.reducer
    former._remove_autograd_hooks()
    wrapped._bucket_config = config
    wrapped.bucket_bytes_cap = config.bucket_bytes_cap
    wrapped.bucket_bytes_cap_list = list(config.per_bucket_bytes_caps)
    wrapped.bucket_bytes_cap_default = config.first_bucket_bytes_cap < config.bucket_bytes_cap
    parameters, sparse = wrapped._build_params_for_reducer()  # type: ignore[no-untyped-call]
    names = wrapped._build_debug_param_to_name_mapping(parameters)  # type: ignore[no-untyped-call]
    with _beginning_with(groups):
        wrapped._ddp_init_helper(parameters, sparse, names, wrapped.static_graph)  # type: ignore[no-untyped-call]
    wrapped._has_rebuilt_buckets = False
    if wrapped.static_graph:
        wrapped.reducer._set_static_graph()
        wrapped.logger._set_static_graph()  # type: ignore[union-attr]
        wrapped._static_graph_delay_allreduce_enqueued = False


@contextlib.contextmanager
def _beginning_with(groups: Groups) -> Iterator[None]:
    """Let the next reducer begin with these buckets instead of those of registration order."""
    torchs: Any = dist
    original = torchs._compute_bucket_assignment_by_size

    def given(_: Sequence[Tensor], limits: Sequence[int], *__: object) -> tuple[list[list[int]], list[int]]:
        backwards = [list(group) for group in reversed(groups)]
        return backwards, [max(limits)] * len(backwards)

    torchs._compute_bucket_assignment_by_size = given
    try:
        yield
    finally:
        torchs._compute_bucket_assignment_by_size = original


def caps_in_force(wrapped: Stock | DistributedDataParallel) -> BucketCaps:
    """Return the caps that `wrapped` was made with, or has been given since."""
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
