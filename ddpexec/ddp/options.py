"""The constructor's options: what they mean, and which of them contradict each other.

Types are checked first (`check_flags`, `check_objects`), values where they are used.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ddpexec.ddp.buckets import ReducerOptions
from ddpexec.ddp.drop import LayerDrop
from ddpexec.ddp.parameters import ModelParameters
from ddpexec.errors import OptionError
from ddpexec.groups.process_groups import Communicator
from ddpexec.timing.observe import Observer
from ddpsim.bucketing import BucketCaps, BucketPlan, initial_plan, unused_plan
from ddpsim.bucketing.order.policy import OrderPolicy
from ddpsim.bucketing.order.predictors import Predictor, predictor
from ddpsim.bucketing.order.rebuild import Never, Once, Rebuild, rebuild
from ddpsim.bucketing.plan import check_model, custom_plan
from ddpsim.common.errors import PlanError
from ddpsim.common.options.exclusions import refuse_excluded

LONG = 60
"""Characters of a value that are still shown."""

_KINDS: dict[str, tuple[type | None, tuple[str, ...], str]] = {
    "module": (nn.Module, (), "give the torch.nn.Module to train"),
    "plan": (BucketPlan, (), "give a ddpsim.BucketPlan, e.g. what ddpsim.load_plan made of a file"),
    "drop": (LayerDrop, (), "give a ddpexec.ddp.drop.LayerDrop"),
    "observer": (Observer, (), "give a ddpexec.timing.observe.Observer"),
    "rebuild": (str, ("due",), "give never, once, drift or a ddpsim.bucketing.order.Rebuild"),
    "predictor": (
        str, ("observe", "predict"),
        "give last, mean, exponential, branch, context, package.module:Class or a ddpsim.bucketing.order.Predictor",
    ),
    "consensus": (str, (), "give rank0, mean or slowest"),
    "device_mesh": (None, ("ndim", "get_group"), "give what init_device_mesh returned"),
    "mixed_precision": (
        None, ("param_dtype", "reduce_dtype", "buffer_dtype"), "give a torch.nn.parallel.distributed._MixedPrecision",
    ),
    "scheme": (str, ("schedule", "runner"), "give a scheme's name, or a ddpsim.schedules.scheme.Scheme"),
    "make_optimizer": (
        None, ("__call__",), "give what makes an optimizer, e.g. lambda parameters: torch.optim.SGD(parameters, 0.1)",
    ),
    "device_ids": (Sequence, (), "give a list of one device, e.g. [0]"),
}  # fmt: skip
"""Option: its type, the attributes by which something else is taken for it, and what to give."""

_REQUIRED = "module", "predictor", "consensus"
"""Options that may not be None."""


def check_flags(**flags: object) -> None:
    """Raise OptionError for an option that is neither True nor False."""
    for name, value in flags.items():
        if not isinstance(value, (bool, int)) or value not in (True, False):
            raise OptionError(f"{name}={value!r} is neither True nor False", remedy="give one of these")


def check_objects(**options: object) -> None:
    """Raise OptionError for an option that is not of its kind."""
    for name, value in options.items():
        kind, attributes, remedy = _KINDS[name]
        fits = kind is not None and isinstance(value, kind) and (kind is str or not isinstance(value, str))
        alike = bool(attributes) and all(hasattr(value, attribute) for attribute in attributes)
        if not (fits or alike or (value is None and name not in _REQUIRED)):
            shown = repr(value)
            shown = f"{name}={shown}" if len(shown) <= LONG else name
            raise OptionError(f"{shown} is of type {type(value).__name__}", remedy=remedy)


COMM = ("real", "noop")


def communicator_of(process_group: Any, device_mesh: Any, comm: str) -> Communicator:
    """Return where gradients go: the given group, the groups in turn, the mesh's group, or the default group."""
    if comm not in COMM:
        raise OptionError(f"comm={comm!r} is unknown", remedy=f"use one of {', '.join(COMM)}")
    if process_group is not None and device_mesh is not None:
        raise OptionError("Cannot specify both process_group and device_mesh arguments.", remedy="keep one")
    if device_mesh is not None:
        if device_mesh.ndim != 1:
            raise OptionError(f"Only 1D device mesh is supported, but got {device_mesh}.", remedy="slice the mesh")
        groups = [device_mesh.get_group(mesh_dim=0)]
    elif process_group is None:
        if not dist.is_initialized():
            raise OptionError(
                "Default process group has not been initialized",
                remedy="call torch.distributed.init_process_group first, e.g. under torchrun",
            )
        groups = [dist.group.WORLD]
    else:
        groups = list(process_group) if isinstance(process_group, (list, tuple)) else [process_group]
    if not all(isinstance(group, dist.ProcessGroup) for group in groups):
        raise OptionError(
            f"process_group={process_group!r} is not a process group of this rank",
            remedy="give what torch.distributed.new_group returned, or a list of those",
        )
    return Communicator(groups, noop=comm == "noop")


def localise(module: nn.Module, device_mesh: Any) -> None:
    """Give a tensor parallel `module` local parameters, as torch does where `device_mesh` is part of a larger one."""
    if device_mesh is not None and device_mesh._get_root_mesh() != device_mesh:
        from torch.distributed.tensor.parallel.ddp import _pre_dp_module_transform

        _pre_dp_module_transform(module)


def make_mixed_precision_error(what: str) -> OptionError:
    """Return the error for something that cannot go with `mixed_precision`."""
    return OptionError(f"{what} and mixed_precision do not go together", remedy="use torch.autocast instead")


def hook_twice(mixed: bool = False) -> OptionError:
    """Return the error for a second communication hook."""
    if mixed:
        return make_mixed_precision_error("a communication hook")
    return OptionError(
        "register_comm_hook or register_builtin_comm_hook can only be called once.",
        remedy="register one hook, which may call both",
    )


def caps_of(cap: float | None, first: float | None, caps: Sequence[float] | None) -> BucketCaps:
    """Return the cap options, checked for type, range and contradiction."""
    for name, value in (("bucket_cap_mb", cap), ("first_bucket_mb", first)):
        if value is not None and not _is_number(value):
            raise OptionError(f"{name}={value!r} is not a size in MiB", remedy="give a number, e.g. 25")
    if caps is None:
        return BucketCaps(cap, first)
    if isinstance(caps, (str, bytes)) or not isinstance(caps, Sequence) or not all(map(_is_number, caps)):
        raise OptionError(f"bucket_cap_mb_list={caps!r} is not a list of sizes in MiB", remedy="give e.g. [1, 25]")
    return BucketCaps(cap, first, tuple(caps))


def order_policy(
    count: int,
    options: ReducerOptions,
    planned: bool,
    when: str | Rebuild | None,
    expect: str | type[Predictor] | Predictor,
    whose: str,
) -> OrderPolicy:
    """Return when to rebuild, and for which order: by default once, but never for a plan or unused parameters."""
    policy: Rebuild = rebuild(when) if isinstance(when, str) else when or Once()
    if when is None and (planned or options.searching):
        policy = Never()
    chosen = predictor(expect) if isinstance(expect, str | type) else expect
    unused = "first" if options.searching else "last"
    return OrderPolicy(count, policy, chosen, whose, unused)


def check_module(module: nn.Module, parameters: Sequence[nn.Parameter]) -> None:
    """Raise where a module cannot be trained data parallel.

    There is nothing to reduce, parameters are lazy, devices of several types, or batch norms synchronise on the CPU.
    """
    if not any(parameter.requires_grad for parameter in parameters):
        raise OptionError(
            "DistributedDataParallel is not needed when a module doesn't have any parameter that requires a gradient.",
            remedy="train the module as it is",
        )
    for parameter in parameters:
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise OptionError(
                "Modules with uninitialized parameters can't be used with `DistributedDataParallel`.",
                remedy="Run a dummy forward pass to correctly initialize the modules",
            )
    types = sorted({parameter.device.type for parameter in parameters})
    if len(types) > 1:
        raise OptionError(
            "DistributedDataParallel's input module must be on the same type of devices, but input module parameters "
            f"locate in {{{', '.join(map(repr, types))}}}.",
            remedy="move the module to one type of device",
        )
    if types == ["cpu"] and any(isinstance(layer, nn.SyncBatchNorm) for layer in module.modules()):
        what = "SyncBatchNorm layers only work with GPU modules"  # torch has no such kernel for a CPU
        raise OptionError(what, remedy="use BatchNorm layers, or move the module to a GPU")


def devices_of(
    parameters: Sequence[nn.Parameter], device_ids: Sequence[Any] | None, output_device: Any
) -> tuple[list[int] | None, int | None]:
    """Return `device_ids` and `output_device` as device indices, or None for CPU and multi-device modules."""
    if device_ids is not None and len(device_ids) > 1:
        raise OptionError(
            f"device_ids can only be None or contain a single element, it is {list(device_ids)}.",
            remedy="run one process per device",
        )
    devices = {parameter.device for parameter in parameters}
    single_gpu = len(devices) == 1 and next(iter(devices)).type != "cpu"
    if device_ids and single_gpu:
        index = _index(device_ids[0])
        return [index], index if output_device is None else _index(output_device)
    if device_ids or output_device:
        raise OptionError(
            "DistributedDataParallel device_ids and output_device arguments only work with single-device/multiple-"
            f"device GPU modules or CPU modules, but got device_ids {device_ids}, output_device {output_device}, and "
            f"module parameters {devices}.",
            remedy="leave device_ids and output_device out",
        )
    return None, None


def buffer_sync(broadcast_buffers: bool | None, forward_sync_buffers: bool | None) -> tuple[bool, bool]:
    """Return whether buffers are broadcast at construction, and before each forward.

    Of the two options `forward_sync_buffers` wins, and leaves construction alone.
    """
    if broadcast_buffers is not None:
        text = (
            "Both `broadcast_buffers` and `forward_sync_buffers` were specified. `broadcast_buffers` is deprecated and "
            "its value is ignored when `forward_sync_buffers` is provided."
            if forward_sync_buffers is not None
            else "`broadcast_buffers` is deprecated. Use `forward_sync_buffers` instead. IMPORTANT: unlike "
            "`broadcast_buffers=False`, `forward_sync_buffers=False` still syncs buffers at init."
        )
        warnings.warn(text, FutureWarning, stacklevel=4)
    if forward_sync_buffers is not None:
        return True, forward_sync_buffers
    both = True if broadcast_buffers is None else broadcast_buffers
    return both, both


def check_scheme(**given: object) -> None:
    """Raise OptionError for options of DDP's buckets with a scheme, or options of schemes without one.

    Args:
        given: the constructor's options; what is false is not given.
    """
    refuse_excluded(None, "modules wrapped by a scheme", OptionError, beside=given)


def check_drop(drop: LayerDrop | None, options: ReducerOptions, names: list[str]) -> None:
    """Raise OptionError where every iteration is to use the same, or `drop` counts other parameters."""
    refuse_excluded(options, "wrapped modules", OptionError, beside={"drop": drop})
    if drop is not None and drop.names != names:
        alone = sorted(set(drop.names).symmetric_difference(names))
        raise OptionError(
            f"drop was made with other parameters than are trained: {', '.join(alone[:5]) or 'in another order'}",
            remedy="make it of the module that is wrapped, after naming or freezing what is not trained",
        )


def first_plan(
    model: ModelParameters, caps: BucketCaps, plan: BucketPlan | None, *, find_unused: bool, static: bool
) -> BucketPlan:
    """Return the buckets of the first iteration: the given plan, or what torch begins with."""
    if plan is None:
        return unused_plan(model.policy, caps) if find_unused and not static else initial_plan(model.policy, caps)
    refuse_excluded(caps, "modules wrapped with a plan", OptionError, beside={"plan": plan})
    try:
        check_model(plan.parameter_names, model.policy)
        checked = custom_plan(model.policy, plan.groups())
    except PlanError as error:
        error.at("plan")
    pairs = zip(checked.buckets, plan.buckets, strict=True)
    buckets = tuple(replace(bucket, limit_bytes=original.limit_bytes) for bucket, original in pairs)
    return replace(checked, buckets=buckets, call=plan.call)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _index(device: Any) -> int:
    index: int = torch._utils._get_device_index(device, True)
    return index
