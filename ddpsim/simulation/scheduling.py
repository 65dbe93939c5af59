"""The schedule of a simulated job: what its scheme is told of it, and the ranks that carry out what it makes.

A schedule made ready for a rank: where in forward and backward it stops, and what its messages cost it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from ddpsim.bucketing import BucketPlan
from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.ddp_costs import Costs
from ddpsim.collectives.execute import make_transport
from ddpsim.collectives.groups import part_of, share_of_together
from ddpsim.jobs.simulated import Options
from ddpsim.operations import Operation
from ddpsim.schedules.mesh import DATA, LAYERS, TENSOR, beside_experts, beside_stages, beside_tensor, group_of_stage
from ddpsim.schedules.message import WORLD
from ddpsim.schedules.points import Point, PointKind, points
from ddpsim.schedules.schedule import Lane, Schedule, parameters_at, queue_of
from ddpsim.schedules.servers import SERVERS
from ddpsim.schedules.setup import SchemeInputs
from ddpsim.simulation.messages import Launches, PlannedMessage, is_filled_by_hooks, messages_of
from ddpsim.topology.graph import Placement
from ddpsim.workload import Workload

BUFFERS_LANE: Lane = (WORLD, "module buffers")
"""The lane of the process group of all ranks that buffers are broadcast on.

Messages have groups of their own in `ddpexec.schedules.lanes`, so that a broadcast waits for none of them.
"""


_ROUNDING = 1e-12
"""Of shares of forward: those no farther apart are one."""


@dataclass(frozen=True, slots=True)
class OptimizerUpdate:
    """What the optimizer does at once.

    Attributes:
        before, after: the points `optimizer:I` and `updated:I` of its parameters.
        share: of the optimizer's time on this rank.
        host_s: what it takes where the host has its state; None where the device has.
    """

    before: tuple[Point, ...]
    after: tuple[Point, ...]
    share: float
    host_s: float | None = None


WHOLE_UPDATE = OptimizerUpdate((), (), 1.0)
"""All at once, without a schedule."""


@dataclass(frozen=True, slots=True)
class ForwardWait:
    """A moment of forward before which messages may be waited for, and at which they may be launched.

    Attributes:
        host, work: share of forward that is over then, on the host and on the device.
        updates: what the optimizer has left until then.
        points: that are passed there.
    """

    host: float
    work: float
    updates: tuple[OptimizerUpdate, ...]
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A schedule as one kind of rank carries it out.

    Attributes:
        schedule: with its messages cut into segments.
        messages: one a message, in the same order.
        lanes: groups and streams; of a pipeline, of all its ranks.
        forward: where forward stops, in order.
        updates: what the optimizer does after backward, in order; none where it updates before use.
        needed: by parameter, the points before the computation of its gradient; empty where there are none.
        filled: parameters whose gradient's hook copies it into a message.
        buffers_lane: number of the lane of module buffers.
        layers_lane: of what layers wait for; None where they wait for nothing.
    """

    schedule: Schedule
    messages: tuple[PlannedMessage, ...]
    lanes: tuple[Lane, ...]
    forward: tuple[ForwardWait, ...]
    updates: tuple[OptimizerUpdate, ...]
    needed: tuple[tuple[Point, ...], ...]
    filled: frozenset[int]
    buffers_lane: int = 0
    layers_lane: int | None = None

    @classmethod
    def of(
        cls,
        schedule: Schedule,
        workload: Workload,
        costs: Costs,
        options: Options,
        *,
        gloo: bool = False,
        host_copy_s: float = 0.0,
        pipeline: tuple[Sequence[Lane], int] | None = None,
    ) -> Scheduled:
        """Return `schedule` for ranks that compute `workload`.

        Args:
            pipeline: the lanes of all ranks of a pipeline, and the place of this one in it.
            gloo: whether it is carried out over gloo, whose messages start when the host launches them.
            host_copy_s: of a byte between host and device.
        """
        count = len(workload.parameters)
        lanes, place = (lanes_of(schedule), None) if pipeline is None else pipeline
        layers = [number for number, lane in enumerate(lanes) if lane in _layers_lanes(place)]
        backward = parameters_at(schedule, PointKind.BACKWARD)
        filled = (index for each in schedule if is_filled_by_hooks(each) for index in each.parameters)
        late = schedule.update == "before_use"
        groups = _groups(schedule, count, clipping=options.clip_gradients)
        if not late and not _updates_apart(schedule, count):
            groups = [list(range(count))]
        served = {index for message in schedule if message.group == SERVERS for index in message.parameters}
        groups = [mine for group in groups if (mine := [index for index in group if index not in served])]
        return cls(
            schedule,
            messages_of(
                schedule,
                workload,
                costs,
                tuple(lanes),
                view=options.gradient_as_bucket_view,
                gloo=gloo,
                host_copy_s=host_copy_s,
            ),
            tuple(lanes),
            _find_waits(schedule, workload, groups if late else []),
            () if late else tuple(_update(schedule, workload, group, options.scale_host) for group in groups),
            tuple((Point(PointKind.BACKWARD, index),) if index in backward else () for index in range(count)),
            frozenset(filled),
            lanes.index(_buffers_lane(place)),
            next(iter(layers), None),
        )

    def launches(self) -> Launches:
        """Return what one rank launches and waits for, from its first iteration on."""
        ids = [message.id for message in self.schedule]
        return Launches(queue_of(self.schedule), self.messages, ids, len(self.needed))


def _buffers_lane(place: int | None) -> Lane:
    return BUFFERS_LANE if place is None else (group_of_stage(DATA, place), BUFFERS_LANE[1])


def _layers_lanes(place: int | None) -> Sequence[Lane]:
    return LAYERS if place is None else ((group_of_stage(TENSOR, place), LAYERS[0][1]),)


def lanes_of(schedule: Schedule, place: int | None = None) -> tuple[Lane, ...]:
    """Return the groups and streams of a schedule's messages, of module buffers, which are first, and of layers.

    Args:
        place: in a pipeline, of the ranks that carry it out.
    """
    layers = [lane for lane in _layers_lanes(place) if lane[0] in schedule.groups]
    sent = [(message.group, message.stream) for message in schedule]
    return tuple(dict.fromkeys([_buffers_lane(place), *sent, *layers]))


def _updates_apart(schedule: Schedule, count: int) -> bool:
    """Whether messages wait for parts of a sharded optimizer's update, which is then made part by part."""
    parts = [sum(point.kind is PointKind.UPDATED for point in message.after) for message in schedule]
    sharding = schedule.sharding
    return sharding.optimizer > 1 and sharding.parameters == 1 and any(0 < updated < count for updated in parts)


def _groups(schedule: Schedule, count: int, *, clipping: bool) -> list[list[int]]:
    """Return the parameters that are updated together: those of messages that have any in common.

    Clipping needs the norm of all gradients, so that all are updated together.
    """
    if clipping:
        return [list(range(count))]
    group = list(range(count + 1))

    def root(index: int) -> int:
        while group[index] != index:
            group[index] = group[group[index]]
            index = group[index]
        return index

    awaited: set[int] = set()
    for message in schedule:
        blocked = _parameters(PointKind.OPTIMIZER, message.blocks)
        awaited.update(blocked)
        for index in blocked[1:]:
            group[root(index)] = root(blocked[0])
    members: dict[int, list[int]] = {}
    for index in range(count):
        members.setdefault(root(index) if index in awaited else count, []).append(index)
    return list(members.values())


def _update(
    schedule: Schedule, workload: Workload, parameters: Iterable[int], scale_host: float = 1.0
) -> OptimizerUpdate:
    chosen = tuple(parameters)
    whole = sum(parameter.size_bytes for parameter in workload.parameters)
    share = sum(workload.parameters[index].size_bytes for index in chosen) / whole if whole else 1.0
    before, after = parameters_at(schedule, PointKind.OPTIMIZER), parameters_at(schedule, PointKind.UPDATED)
    sharding, offload = schedule.sharding, schedule.sharding.offload
    elements = sum(workload.parameters[index].numel for index in chosen) / sharding.optimizer
    return OptimizerUpdate(
        points(PointKind.OPTIMIZER, tuple(index for index in chosen if index in before)),
        points(PointKind.UPDATED, tuple(index for index in chosen if index in after)),
        share / sharding.optimizer,
        None if offload is None else scale_host * offload.host_s(elements, workload.optimizer_kind),
    )


def _parameters(kind: PointKind, *of: Iterable[Point]) -> list[int]:
    """Return the parameters whose point `kind` is among some points."""
    return [point.parameter for each in of for point in each if point.kind is kind and point.parameter is not None]


def _find_waits(schedule: Schedule, workload: Workload, groups: Sequence[Sequence[int]]) -> tuple[ForwardWait, ...]:
    use = workload.forward_shares()
    device = np.nan_to_num(use.device_s, nan=1.0)
    host = np.nan_to_num(use.host_s, nan=1.0)
    first: dict[int, int] = {}
    for number, message in enumerate(schedule):
        for parameter in _parameters(PointKind.OPTIMIZER, message.blocks):
            first.setdefault(parameter, number)
    # A rank that has waited at the first point of a message passes its others.
    needed = set(_parameters(PointKind.FORWARD, *(message.after for message in schedule)))
    for message in schedule:
        if blocked := _parameters(PointKind.FORWARD, message.blocks):
            needed.add(min(blocked, key=device.__getitem__))
    found: dict[float, tuple[list[tuple[int, OptimizerUpdate]], list[int]]] = {}
    for members in groups:
        order = min(first.get(index, 0) for index in members)
        stop = found.setdefault(float(device[list(members)].min()), ([], []))
        stop[0].append((order, _update(schedule, workload, members)))
    for index in sorted(needed, key=lambda index: (device[index], index)):
        found.setdefault(float(device[index]), ([], []))[1].append(index)
    stops, over = [], 0.0
    for share in sorted(found):
        updates, parameters = found[share]
        over = max(over, float(host[np.abs(device - share) <= _ROUNDING].min()))
        chosen = tuple(update for _, update in sorted(updates, key=lambda pair: pair[0]))
        stops.append(ForwardWait(over, share, chosen, points(PointKind.FORWARD, tuple(parameters))))
    return tuple(stops)


SEGMENT_ALIGNMENT = 16
"""Bytes at multiples of which messages are cut, as NCCL aligns what it copies fastest."""


def schedule_of(
    options: Options,
    workload: Workload,
    plan: BucketPlan,
    placement: Placement,
    backend: str,
    calibration: Calibration | None,
    place: int | None = None,
) -> Schedule:
    """Return the schedule of a job with the buckets of `plan`, its messages cut into segments.

    Args:
        workload: of rank 0, or of the ranks of a place in a pipeline.
        place: that; None where every rank has all layers.

    Raises:
        PlanError: a schedule that cannot be carried out.
    """
    ours = replace(options.collective, rings=True)
    tensor, data = options.tensor_parallel, placement.world_size // options.ranks_a_copy
    part, together = (placement, 1) if options.ranks_a_copy == 1 else part_of(placement, DATA, data)
    transport, share = make_transport(part, backend, calibration, ours), share_of_together(data, part)

    def time_s(operation: Operation, size_bytes: int) -> float:
        return share * transport.time_s(operation, together * size_bytes)

    setup = setup_of(options, workload, plan, placement, time_s, blocking=backend == "gloo")

    def control_s(library: str, size_bytes: int) -> float:
        known = calibration if backend == library else None
        return make_transport(placement, library, known).time_s(Operation.ALLREDUCE, size_bytes)

    setup = replace(setup, control_s=control_s)
    made = options.schedule(setup).in_segments(SEGMENT_ALIGNMENT)
    if place is not None:
        return beside_stages(made, place, tensor, data)
    if tensor > 1:
        return beside_tensor(made, tensor, data)
    experts = workload.experts
    if experts is None:
        return made
    among = placement.world_size // experts.ranks
    return beside_experts(made, experts.ranks, among, workload.parameters, experts.parameters)


def setup_of(
    options: Options,
    workload: Workload,
    plan: BucketPlan,
    placement: Placement,
    time_s: Callable[[Operation, int], float] | None,
    *,
    blocking: bool,
) -> SchemeInputs:
    """Return what a scheme is told of a job: its buckets, and when gradients come and parameters are needed."""
    ready = np.nanmax(workload.gradient_ready_s, axis=0, initial=0.0) * options.scale_compute
    shares = workload.forward_shares().device_s
    forward_s = float(median(workload.forward.device_s)) * options.scale_compute
    known = workload.forward_use_known
    return SchemeInputs(
        parameters=workload.parameters,
        buckets=plan.groups(),
        world_size=placement.world_size // options.ranks_a_copy,
        every=options.sync_every,
        accumulate=options.accumulate,
        ranks_per_node=max(1, placement.gpus_per_node // options.ranks_a_copy),
        update_s=float(median(workload.optimizer.device_s)) * options.scale_compute,
        ready_s={index: float(seconds) for index, seconds in enumerate(ready)},
        use_s={i: float(s) * forward_s for i, s in enumerate(shares) if not np.isnan(s)} if known else {},
        time_s=time_s,
        blocking=blocking,
    )
