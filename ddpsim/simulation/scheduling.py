"""The schedule of a simulated job: what its scheme is told of it, and ranks made ready to carry out what it makes.

A schedule made ready for a rank says where in forward and backward that stops, and what each message costs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from statistics import median

import numpy as np

from ddpsim.bucketing import BucketPlan
from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.execute import make_transport
from ddpsim.jobs.plans import Plans
from ddpsim.jobs.representatives import SimulatedRank
from ddpsim.jobs.simulated import Options
from ddpsim.jobs.stages import RankPart
from ddpsim.jobs.updates import updates_of
from ddpsim.operations import Operation
from ddpsim.schedules.copied import (
    host_awaits,
    is_copied_out,
    is_filled_by_hooks,
    runs_in_rings,
    share_filled_at_launch,
)
from ddpsim.schedules.mesh import (
    DATA,
    LAYERS,
    SENDS,
    TENSOR,
    beside_experts,
    beside_stages,
    beside_tensor,
    group_of_stage,
)
from ddpsim.schedules.message import WORLD, Message
from ddpsim.schedules.pipeline import works_of
from ddpsim.schedules.points import PointKind
from ddpsim.schedules.schedule import Lane, Schedule, parameters_at
from ddpsim.schedules.setup import SchemeInputs
from ddpsim.simulation.codec_costs import Encoding
from ddpsim.simulation.ddp_costs import Costs
from ddpsim.simulation.graph import PlannedMessage
from ddpsim.simulation.lanes import part_of, share_of_together
from ddpsim.simulation.setting import RankConfiguration, Scheduled, StagedRank
from ddpsim.topology.graph import Placement
from ddpsim.workload import Workload
from ddpsim.workload.iteration_profile import IterationProfile

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
        frozen=workload.frozen,
    )


BUFFERS_LANE: Lane = (WORLD, "module buffers")
"""The lane of the process group of all ranks that buffers are broadcast on.

Messages have groups of their own in `ddpexec.schedules.lanes`, so that a broadcast waits for none of them.
"""


def _make_ready(
    schedule: Schedule,
    setting: RankConfiguration,
    *,
    gloo: bool,
    host_copy_s: float = 0.0,
    pipeline: tuple[Sequence[Lane], int] | None = None,
) -> Scheduled:
    """Return `schedule` for ranks that compute as `setting` says.

    Args:
        gloo: whether it is carried out over gloo, whose messages start when the host launches them.
        host_copy_s: of a byte between host and device.
        pipeline: the lanes of all ranks of a pipeline, and the place of this one in it.
    """
    workload, options = setting.workload, setting.options
    lanes, place = (_lanes_of(schedule), None) if pipeline is None else (tuple(pipeline[0]), pipeline[1])
    layers = (number for number, lane in enumerate(lanes) if lane in _layers_lanes(place))
    filled = (index for each in schedule if is_filled_by_hooks(each) for index in each.parameters)
    forward, updates = updates_of(schedule, workload, clipping=options.clip_gradients, scale_host=options.scale_host)
    return Scheduled(
        schedule,
        tuple(_messages_of(schedule, setting, lanes, gloo=gloo, host_copy_s=host_copy_s)),
        lanes,
        forward,
        updates,
        parameters_at(schedule, PointKind.BACKWARD),
        frozenset(filled),
        lanes.index(_buffers_lane(place)),
        next(layers, None),
    )


def _messages_of(
    schedule: Schedule, setting: RankConfiguration, lanes: Sequence[Lane], *, gloo: bool, host_copy_s: float
) -> Iterator[PlannedMessage]:
    """Yield the messages of `schedule`, in its order, with what each costs a rank."""
    costs, parameters, view = setting.costs, setting.workload.all_parameters, setting.options.gradient_as_bucket_view
    rung = {(each.group, each.stream) for each in schedule if runs_in_rings(schedule) and each.op.in_parts}
    numbers = {message.id: number for number, message in enumerate(schedule)}
    for number, message in enumerate(schedule):
        lane, whole = (message.group, message.stream), sum(parameters[index].size_bytes for index in message.parameters)
        tensors = len(message.parameters) * message.size_bytes / whole if whole else 0.0
        copied, tensors = (message.size_bytes, tensors) if message.chunks is None else (whole, len(message.parameters))
        copy_s = tensors * costs.copy_s + copied / costs.copy_Bps
        out = message.passes or float(is_copied_out(message, schedule, view=view))
        filled = message.launch_passes + share_filled_at_launch(message, schedule, gloo=gloo)
        yield PlannedMessage(
            number,
            message.size_bytes,
            message.parameters,
            Encoding(((0.0, message.size_bytes),)),
            out * copy_s,
            message.op,
            lanes.index(lane),
            tuple(numbers[name] for name in message.after_messages),
            filled * copy_s + _unit_s(message, costs),
            host_awaits(message, gloo=gloo) and lane not in rung,
            message.delay_s,
            message.blocking,
            message.from_host_bytes * host_copy_s,
            message.to_host_bytes * host_copy_s,
        )


def _unit_s(message: Message, costs: Costs) -> float:
    """Return what the hooks of `fully_shard` take beside the launch and the end of a collective of a unit.

    A sum over copies is part of what comes before it.
    """
    if not message.blocking or message.after_messages:
        return 0.0
    return max(0.0, costs.unit_s - costs.launch_s - costs.finish_s)


def _buffers_lane(place: int | None) -> Lane:
    return BUFFERS_LANE if place is None else (group_of_stage(DATA, place), BUFFERS_LANE[1])


def _layers_lanes(place: int | None) -> Sequence[Lane]:
    return LAYERS if place is None else ((group_of_stage(TENSOR, place), LAYERS[0][1]),)


def _lanes_of(schedule: Schedule, place: int | None = None) -> tuple[Lane, ...]:
    """Return the groups and streams of a schedule's messages, of module buffers, which are first, and of layers.

    Args:
        place: in a pipeline, of the ranks that carry it out.
    """
    layers = [lane for lane in _layers_lanes(place) if lane[0] in schedule.groups]
    sent = [(message.group, message.stream) for message in schedule]
    return tuple(dict.fromkeys([_buffers_lane(place), *sent, *layers]))


REPLICATE_S = 27e-6
"""Host seconds, by parameter and replica, in which a module is copied for its replicas before each forward.

`python -m studies.host_costs.replicas` measures it: 29.5 us of ResNet-50 and 25.5 us of BERT on an AMD EPYC.
"""


def _merge_ranks(setting: RankConfiguration, ranks: int) -> RankConfiguration:
    """Return `setting` where `ranks` of them are threads of one process.

    Their forwards launch through one interpreter, whose lock one thread has at a time, so that the host's time is all
    of theirs together, and each forward's replicas are copied before. Backward is the autograd engine's own threads',
    one a device, which need no lock. One thread loads the batches of all.
    """
    alone, stage = setting.pace, setting.input_stage
    copied_s = REPLICATE_S * len(setting.workload.parameters) if ranks > 1 else 0.0

    def pace(iteration: int) -> IterationProfile:
        own = alone(iteration)
        return replace(own, forward_host=ranks * (own.forward_host + copied_s))

    return replace(setting, pace=pace, input_stage=None if stage is None else stage.merge_ranks(ranks))


def carry_out(
    schedule: Schedule,
    settings: Sequence[RankConfiguration],
    world_size: int,
    backend: str,
    host_copy_s: float = 0.0,
) -> list[RankConfiguration]:
    """Return `settings` of ranks that carry out `schedule`, made ready once for all that compute alike.

    Args:
        host_copy_s: of a byte between the host and the device of each rank.
    """
    found = [_merge_ranks(each, world_size) for each in settings] if schedule.one_process else settings
    carried: list[RankConfiguration] = []
    for each in found:
        alike = (one.scheduled for one in carried if one.workload is each.workload and one.costs == each.costs)
        copy_s = 0.0 if each.execution.one_thread else host_copy_s
        made = next(alike, None) or _make_ready(schedule, each, gloo=backend == "gloo", host_copy_s=copy_s)
        carried.append(replace(each, scheduled=made))
    return carried


def in_stages(
    parts: Sequence[RankPart],
    draws: Sequence[SimulatedRank],
    settings: Sequence[RankConfiguration],
    placement: Placement,
    backend: str,
    calibration: Calibration | None,
) -> list[RankConfiguration]:
    """Return `settings` of the ranks of a pipeline, each with its stages and the schedule of its place.

    Args:
        parts: what ranks have, by place.
        draws: who is simulated, as `settings`.
    """
    options = settings[0].options
    given = options.pipeline
    assert given is not None
    boundary_bytes = given.boundary_bytes or parts[0].workload.boundary_bytes or 0
    schedules: list[Schedule] = []
    plans = [Plans([0], [options.plan_of_part(each)]) for each in parts]
    for place, each in enumerate(parts):
        plan = plans[place].plan(0)
        schedules.append(schedule_of(options, each.workload, plan, placement, backend, calibration, place))
    last = given.stages * given.stages_per_rank - 1
    sends = [("forward", stage) for stage in range(last)] + [("backward", stage) for stage in range(1, last + 1)]
    lanes = [lane for place, each in enumerate(schedules) for lane in _lanes_of(each, place)]
    numbers = {send: len(lanes) + at for at, send in enumerate(sends)}
    lanes += [(group_of_stage(SENDS, stage), kind) for kind, stage in sends]
    works = works_of(given.order, given.stages, given.micro_batches, given.stages_per_rank)
    found, made = list[RankConfiguration](), dict[int, Scheduled]()
    for draw, setting in zip(draws, settings, strict=True):
        part = draw.kind.part
        assert part is not None
        if part.place not in made:
            schedule, pipeline = schedules[part.place], (lanes, part.place)
            made[part.place] = _make_ready(schedule, setting, gloo=backend == "gloo", pipeline=pipeline)
        stages = StagedRank(part, works[part.place], last, boundary_bytes, numbers)
        found.append(replace(setting, plans=plans[part.place], scheduled=made[part.place], stages=stages))
    return found
