"""A step on one device cut at its layers, each part on a device of its own, as a model by hand puts them there.

`put_on_devices` makes a workload whose parameters have devices, `cut_layers` finds where to cut. What is not simulated
of such a step is refused (`check_devices`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ddpsim.bucketing import Parameter
from ddpsim.collectives.conditions import GPU_BACKENDS
from ddpsim.common.errors import InputError, WorkloadError
from ddpsim.common.options.exclusions import TABLE, given
from ddpsim.schedules.pipeline import divide_stages
from ddpsim.schedules.units import modules_of, units_of
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.simulation.jobs.stages import boundary_of
from ddpsim.topology.graph import Placement
from ddpsim.workload.devices import DevicePart, buffer_devices, device_numbers, find_nearest
from ddpsim.workload.operators import NARROW, StepOperators
from ddpsim.workload.profile import Buffer, Workload

Members = tuple[int, ...]
"""Registration indices of parameters."""


@dataclass(frozen=True, slots=True)
class _Layers:
    """The layers of a step in forward's order.

    Attributes:
        members: parameters of each.
        begins: share of forward, on the device, that is over when each begins.
        costs_s: what forward and backward of each take the device.
    """

    members: list[Members]
    begins: list[float]
    costs_s: list[float]


def cut_layers(workload: Workload, devices: int, at: Sequence[str] = ()) -> list[Members]:
    """Return the parameters of each of `devices` parts, consecutive layers, in forward's order.

    Layers are a model's repeated blocks, and the modules outside them.

    Args:
        at: the layers with which the second part and those after it begin; none divides the device's time so that the
            longest part is the shortest.

    Raises:
        WorkloadError: fewer than two devices, more of them than layers, another number of layers to cut at, one that
            the model does not have or that is not behind the one before it, or a forward of which nobody knows when it
            needs what.
    """
    if devices < 2:
        raise WorkloadError(f"{devices} devices", place="devices", remedy="give 2 or more")
    if not workload.forward_use_known:
        what = f"of {workload.name} it is not known when forward first needs each parameter"
        raise WorkloadError(what, place="forward_use_s", remedy="capture or estimate the step again")
    layers = _find_layers(workload)
    count = len(layers.members)
    if devices > count:
        what = f"{devices} devices for a model of {count} layers"
        raise WorkloadError(what, place="devices", remedy=f"give {count} at most")
    if not at:
        begins = divide_stages(layers.costs_s, devices)
    else:
        if len(at) != devices - 1:
            what = f"{len(at)} layers to cut {devices} devices' parts at"
            raise WorkloadError(what, place="at", remedy=f"name {devices - 1}")
        begins = [0, *(_find_layer(workload.parameters, layers.members, name) for name in at)]
        for place, (before, begin) in enumerate(pairwise(begins)):
            if begin <= before:
                remedy = "name layers in forward's order, none of them the first"
                raise WorkloadError("a part without a layer is before it", place=f"at {at[place]!r}", remedy=remedy)
    spans = zip(begins, [*begins[1:], count], strict=True)
    return [tuple(index for layer in layers.members[begin:end] for index in layer) for begin, end in spans]


def put_on_devices(
    workload: Workload, parts: Sequence[Members], sent_bytes: int | Sequence[int] | None = None
) -> Workload:
    """Return `workload` with the parameters of each of `parts` on a device of its own, `cuda:0` and so on.

    Args:
        parts: registration indices, in forward's order.
        sent_bytes: of activations that pass from one part to the next, of each cut or of all; None are those that the
            workload's operators tell.

    Raises:
        WorkloadError: a CPU's step, bytes that are neither given nor known, or parts that begin in another order.
    """
    if workload.one_clock:
        what, remedy = f"{workload.name} is computed by a CPU, which is one device", "take a workload of a GPU"
        raise WorkloadError(what, place="devices", remedy=remedy)
    use = workload.forward_shares()
    host, device = (np.nan_to_num(times, nan=1.0) for times in (use.host_s, use.device_s))
    begins = [(float(host[list(part)].min()), float(device[list(part)].min())) for part in parts]
    known = _sent(workload, parts) if sent_bytes is None else sent_bytes
    sent = [known] * (len(parts) - 1) if isinstance(known, int) else list(known)
    forward = [float(np.median(times)) for times in (workload.forward.host_s, workload.forward.device_s)]
    devices = [
        DevicePart(f"cuda:{number}", begin[0] * forward[0], begin[1] * forward[1], size)
        for number, (begin, size) in enumerate(zip([*begins[1:], (1.0, 1.0)], [*sent, 0], strict=True))
    ]
    number_of = {index: number for number, part in enumerate(parts) for index in part}
    parameters = tuple(
        replace(each, device=devices[number_of[index]].device) for index, each in enumerate(workload.parameters)
    )
    bare = [Parameter(each.name, each.shape, each.dtype, "") for each in workload.buffers]
    where = buffer_devices(devices, parameters, bare)
    buffers = tuple(
        replace(each, device=devices[number].device) for each, number in zip(workload.buffers, where, strict=True)
    )
    frozen = tuple(replace(each, device=parameters[find_nearest(each, parameters)].device) for each in workload.frozen)
    return replace(workload, parameters=parameters, buffers=buffers, devices=tuple(devices), frozen=frozen)


def put_like(workload: Workload, source: Workload) -> Workload:
    """Return `workload`, an estimate of the step of `source` for another GPU or batch, on as many devices as that."""
    if workload.devices:
        return workload
    numbers = device_numbers(source.devices, source.parameters)
    parts = [tuple(i for i, number in enumerate(numbers) if number == place) for place in range(len(source.devices))]
    wide = {name: 2 if name in NARROW else 4 for name in (workload.precision, source.precision)}
    larger = workload.batch_size * wide[workload.precision] / (source.batch_size * wide[source.precision])
    return put_on_devices(workload, parts, [round(larger * part.sent_bytes) for part in source.devices[:-1]])


def check_devices(workload: Workload, placement: Placement, options: Options) -> None:
    """Refuse ranks of several devices where they are not simulated.

    Raises:
        InputError: ranks placed on another number of GPUs each, a process group that does not take tensors of GPUs, or
            an option that is not simulated on several devices.
    """
    count = len(workload.device_shares)
    if count != placement.devices:
        what = f"{workload.name} is of {count} devices a rank, ranks are placed on {placement.devices}"
        raise InputError(what, place="devices", remedy="place as many GPUs a rank as the workload has devices")
    if not workload.devices:
        return
    what = f"{workload.name} has {count} devices a rank"
    if options.backend_for(workload) not in GPU_BACKENDS:
        remedy = "ask for a machine with GPUs and its own library, or for a workload of one device"
        raise InputError(f"{what}, which are GPUs: NCCL or RCCL sums their gradients", place="backend", remedy=remedy)
    [row] = TABLE["ranks of several devices"]
    for other in given(options, row.refuses):
        raise InputError(row.sentence.format(option=what), place=other, remedy=row.remedy)


def _find_layers(workload: Workload) -> _Layers:
    parameters, shares = workload.parameters, np.nan_to_num(workload.forward_shares().device_s, nan=1.0)
    root, units = units_of(parameters)
    outside = [tuple(root[place] for place in each) for each in modules_of([parameters[index] for index in root])]
    ready = np.nan_to_num(np.nanmedian(workload.gradient_ready_s, axis=0))
    layers = sorted((float(shares[list(each)].min()), each) for each in (*outside, *units))
    begins, members = [begin for begin, _ in layers], [each for _, each in layers]
    forward_s = float(np.median(workload.forward.device_s))
    forward = [forward_s * (end - begin) for begin, end in zip(begins, [*begins[1:], 1.0], strict=True)]
    last = [float(ready[list(each)].max()) for each in members]
    backward = [max(0.0, own - behind) for own, behind in zip(last, [*last[1:], 0.0], strict=True)]
    return _Layers(members, begins, [sum(each) for each in zip(forward, backward, strict=True)])


def _find_layer(parameters: Sequence[Parameter], layers: Sequence[Members], name: str) -> int:
    for number, members in enumerate(layers):
        if any(parameters[index].name == name or parameters[index].name.startswith(f"{name}.") for index in members):
            return number
    raise WorkloadError(f"no parameter is below {name!r}", place="at", remedy="give a module's name, e.g. layer3")


def _sent(workload: Workload, parts: Sequence[Members]) -> list[int]:
    """Return the bytes that each part but the first takes from the one before it.

    Of a transformer they are its tokens times their width, as between stages of a pipeline. Of other models they are
    what the first operator of the part reads beside its parameters, 16 bits wide where the precision is.
    """
    known = boundary_of(workload)
    if known is not None:
        return [known] * (len(parts) - 1)
    ops = workload.operators
    width = 0.5 if workload.precision in NARROW else 1.0
    found = []
    for part in parts[1:]:
        read = None if ops is None or ops.forward_use is None else _read_bytes(workload.parameters, ops, part)
        if not read:
            what = f"how many bytes pass to {workload.parameters[part[0]].name} is not known"
            remedy = "give the activations of a batch there: samples x values of a sample x bytes, e.g. 25MiB"
            raise WorkloadError(what, place="sent_bytes", remedy=remedy)
        found.append(round(width * read))
    return found


def _read_bytes(parameters: Sequence[Parameter], operators: StepOperators, part: Members) -> float | None:
    """Return what the first operator that needs a parameter of `part` reads beside it, in fp32.

    A product or a convolution moves its input, its parameters and its output, of whose values each takes as many
    multiplications as one row of the weight has; anything else writes as much as it reads.
    """
    uses = operators.forward_use or ()
    pairs = [(use, index) for index in part if (use := uses[index]) is not None]
    if not pairs:
        return None
    number = min(use for use, _ in pairs)
    first = operators.forward[number]
    moved = first.traffic_bytes - first.fixed_bytes
    if first.kind == "memory":
        return moved / 2
    weight = max((parameters[index] for use, index in pairs if use == number), key=lambda each: each.numel)
    return moved - _WIDE * first.flops / (2 * weight.numel / weight.shape[0])


_WIDE = 4
"""Bytes of an fp32 value."""


class HeldByDevice(NamedTuple):
    """What one device of a rank has.

    Attributes:
        parameters: indices of those that are trained.
        activations_bytes: None where a workload's are not known.
    """

    parameters: frozenset[int]
    frozen_bytes: int
    buffers: Sequence[Buffer]
    activations_bytes: int | None


def held_by(workload: Workload, device: int) -> HeldByDevice:
    """Return what the device of that number has of a workload; all of it where a rank has one."""
    parts, whole = workload.devices, workload.activations_bytes
    if not parts:
        every = frozenset(range(len(workload.parameters)))
        return HeldByDevice(every, workload.frozen_bytes, workload.buffers, whole)
    numbers = device_numbers(parts, workload.parameters)
    where = buffer_devices(parts, workload.parameters, workload.buffers)
    there = buffer_devices(parts, workload.parameters, workload.frozen)
    ends = [0.0, *(part.device_s for part in parts)]
    share = (ends[device + 1] - ends[device]) / ends[-1] if ends[-1] > 0 else 1.0
    return HeldByDevice(
        frozenset(index for index, number in enumerate(numbers) if number == device),
        sum(each.size_bytes for each, number in zip(workload.frozen, there, strict=True) if number == device),
        [buffer for buffer, number in zip(workload.buffers, where, strict=True) if number == device],
        None if whole is None else round(share * whole),
    )
