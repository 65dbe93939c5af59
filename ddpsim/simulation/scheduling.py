"""The schedule of a simulated job: what its scheme gets to know of the job, and how a rank carries the schedule out.

`schedule_of` has the scheme make it. `make_ready` turns it into a `Scheduled` for one kind of rank: where forward and
backward stop for its messages, and what each message costs that rank in copies and host time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median

import numpy as np

from ddpsim.bucketing import BucketPlan, Parameter
from ddpsim.bucketing.drop import remap_gradients
from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.execute import make_transport
from ddpsim.common.operation import Operation
from ddpsim.schedules.copied import (
    is_copied_out,
    is_filled_by_hooks,
    runs_in_rings,
    share_filled_at_launch,
)
from ddpsim.schedules.mesh import DATA, LAYERS, TENSOR, beside_experts, group_of_stage
from ddpsim.schedules.message import WORLD, Message
from ddpsim.schedules.points import PointKind
from ddpsim.schedules.schedule import Lane, Schedule, parameters_at
from ddpsim.schedules.schemes import ddp
from ddpsim.schedules.setup import SchemeInputs
from ddpsim.simulation.ddp_costs import Costs, Encoding
from ddpsim.simulation.graph import PlannedMessage
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.simulation.jobs.updates import updates_of
from ddpsim.simulation.lanes import part_of, share_of_together
from ddpsim.simulation.rank_config import RankConfiguration, Scheduled
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
    place: int = 0,
) -> Schedule:
    """Return the schedule of a job with the buckets of `plan`, its messages cut into segments.

    Args:
        workload: of rank 0, or of the first rank that has the part `place` of the model.

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
    schedule = options.schedule(setup).in_segments(SEGMENT_ALIGNMENT)
    experts = workload.experts
    if experts is None:
        return options.cut.on_ranks(schedule, place, tensor, data, workload.boundary_bytes)
    among = placement.world_size // experts.ranks
    return beside_experts(schedule, experts.ranks, among, workload.parameters, experts.parameters)


def schedule_of_buckets(
    options: Options, parameters: Sequence[Parameter], groups: Sequence[tuple[int, ...]]
) -> Schedule:
    """Return the schedule of torch's reducer, which sums the buckets `groups`: it rests on nothing else."""
    return ddp(SchemeInputs(parameters=parameters, buckets=groups, world_size=1, every=options.sync_every))


def setup_of(
    options: Options,
    workload: Workload,
    plan: BucketPlan,
    placement: Placement,
    time_s: Callable[[Operation, int], float] | None,
    *,
    blocking: bool,
) -> SchemeInputs:
    """Return the inputs of a scheme: a job's buckets, and when gradients come and parameters are needed."""
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

Messages have groups of their own in `ddpexec.ddp.lanes`, so that a broadcast waits for none of them.
"""

_MAIN_LANE: Lane = (WORLD, "main")
"""Of torch's reducer with one process group, on which module buffers go too."""


def make_ready(
    schedule: Schedule,
    rank_config: RankConfiguration,
    lanes: Sequence[Lane],
    *,
    gloo: bool,
    host_copy_s: float = 0.0,
) -> Scheduled:
    """Return `schedule` for ranks that compute as `rank_config` says.

    Args:
        lanes: of all ranks.
        gloo: whether it is carried out over gloo, whose messages start when the host launches them.
        host_copy_s: of a byte between host and device.
    """
    workload, options = rank_config.workload, rank_config.options
    numbers = {lane: number for number, lane in enumerate(lanes)}
    # Where one thread computes, what is offloaded lies where it is computed.
    copy_s = 0.0 if rank_config.execution.one_thread else host_copy_s
    buffers, layers = _lanes_beside(schedule.place)
    filled = (index for each in schedule if is_filled_by_hooks(each) for index in each.parameters)
    forward, updates = updates_of(schedule, workload, clipping=options.clip_gradients, scale_host=options.scale_host)
    return Scheduled(
        schedule,
        tuple(_messages_of(schedule, rank_config, numbers, gloo=gloo, host_copy_s=copy_s)),
        tuple(lanes),
        forward,
        updates,
        parameters_at(schedule, PointKind.BACKWARD),
        frozenset(filled),
        numbers.get(buffers),
        next((numbers[lane] for lane in layers if lane in numbers), None),
    )


def _messages_of(
    schedule: Schedule, rank_config: RankConfiguration, lanes: Mapping[Lane, int], *, gloo: bool, host_copy_s: float
) -> Iterator[PlannedMessage]:
    """Yield the messages of `schedule`, in its order, with what each costs a rank.

    Args:
        lanes: their numbers; those of messages that are not there take turns.
    """
    costs, parameters = rank_config.costs, rank_config.workload.all_parameters
    view = rank_config.options.gradient_as_bucket_view
    codec, devices, several = rank_config.codec, rank_config.devices, len(rank_config.execution.devices) > 1
    # On a lane of rings, which threads of their own carry out over gloo, those threads wait for what comes before.
    rings = runs_in_rings(schedule)
    rung = {(each.group, each.stream) for each in schedule if rings and each.op.in_parts}
    numbers = {message.id: number for number, message in enumerate(schedule)}
    for number, message in enumerate(schedule):
        lane, whole = (message.group, message.stream), sum(parameters[index].size_bytes for index in message.parameters)
        tensors = len(message.parameters) * message.size_bytes / whole if whole else 0.0
        # A message may carry a part of its tensors: as many are copied as its bytes are of theirs. Chunks are chosen
        # anew each time, so that all of a bucket is gone through.
        copied, tensors = (message.size_bytes, tensors) if message.chunks is None else (whole, len(message.parameters))
        copy_s = tensors * costs.copy_s + copied / costs.copy_Bps
        waits = gloo and bool(message.after_messages)
        out = message.passes or float(is_copied_out(message, schedule, view=view))
        filled = message.launch_passes + share_filled_at_launch(message, schedule, gloo=gloo)
        yield PlannedMessage(
            number,
            message.size_bytes,
            message.parameters,
            Encoding(((0.0, message.size_bytes),)) if codec is None else codec.encoding(message.parameters),
            out * copy_s,
            message.op,
            lanes.get(lane),
            tuple(numbers[name] for name in message.after_messages),
            filled * copy_s + _unit_s(message, costs),
            # Of a broadcast the root waits for what comes before, and no rank that receives.
            waits and message.op is not Operation.BROADCAST and lane not in rung,
            message.delay_s,
            message.blocking,
            message.from_host_bytes * host_copy_s,
            message.to_host_bytes * host_copy_s,
            devices[message.parameters[0]] if several else 0,
        )


def _unit_s(message: Message, costs: Costs) -> float:
    """Return what the hooks of `fully_shard` take beside the launch and the end of a collective of a unit.

    A sum over copies is part of what comes before it.
    """
    if not message.blocking or message.after_messages:
        return 0.0
    return max(0.0, costs.unit_s - costs.launch_s - costs.finish_s)


def _lanes_beside(place: int | None) -> tuple[Lane, Sequence[Lane]]:
    """Return the lane of module buffers and those of what layers wait for, of all ranks or of those of a place."""
    if place is None:
        return BUFFERS_LANE, LAYERS
    return (group_of_stage(DATA, place), BUFFERS_LANE[1]), ((group_of_stage(TENSOR, place), LAYERS[0][1]),)


def lanes_of(schedules: Sequence[Schedule]) -> tuple[Lane, ...]:
    """Return the groups and streams of schedules: of module buffers, messages and layers each, then between passes."""
    lanes: list[Lane] = []
    for schedule in schedules:
        buffers, layers = _lanes_beside(schedule.place)
        sent = [(message.group, message.stream) for message in schedule]
        lanes += [buffers, *sent, *(lane for lane in layers if lane[0] in schedule.groups)]
    passes = (each for schedule in schedules for each in schedule.passes)
    between = {(each.kind == "backward", each.stage, each.sends) for each in passes if each.sends is not None}
    return tuple(dict.fromkeys([*lanes, *(lane for _, _, lane in sorted(between))]))


REPLICATE_S = 27e-6
"""Host seconds, by parameter and replica, in which a module is copied for its replicas before each forward.

`python -m studies.host_costs.replicas` measures it: 29.5 us of ResNet-50 and 25.5 us of BERT on an AMD EPYC.
"""


def merge_ranks(rank_config: RankConfiguration, ranks: int) -> RankConfiguration:
    """Return `rank_config` where `ranks` of them are threads of one process.

    Their forwards launch through one interpreter, whose lock one thread has at a time, so that the host's time is all
    of theirs together, and each forward's replicas are copied before. Backward is the autograd engine's own threads',
    one a device, which need no lock. One thread loads the batches of all.
    """
    alone, stage = rank_config.pace, rank_config.input_stage
    copied_s = REPLICATE_S * len(rank_config.workload.parameters) if ranks > 1 else 0.0

    def pace(iteration: int) -> IterationProfile:
        own = alone(iteration)
        return replace(own, forward_host=ranks * (own.forward_host + copied_s))

    return replace(rank_config, pace=pace, input_stage=None if stage is None else stage.merge_ranks(ranks))


def carry_out(
    rank_configs: Sequence[RankConfiguration], make: Callable[[RankConfiguration], Callable[[int], Scheduled]]
) -> list[RankConfiguration]:
    """Return `rank_configs` with what each sends by iteration, made once for all that compute alike."""
    carried: list[RankConfiguration] = []
    for each in rank_configs:
        alike = (one.scheduled for one in carried if one.workload is each.workload and one.costs == each.costs)
        carried.append(replace(each, scheduled=next(alike, None) or make(each)))
    return carried


def in_every_iteration(scheduled: Scheduled) -> Callable[[int], Scheduled]:
    """Return what gives the same in every iteration."""
    return lambda iteration: scheduled


class BucketSchedules:
    """Gives the schedule of each iteration, made ready: the buckets of its plan, as torch's reducer sums them.

    Buckets are others from one iteration to the next where a policy rebuilds them, and where what is left of an
    iteration without some layers moves up into the memory of the first of them.

    Args:
        rank_config: of ranks that compute alike.
        gloo: whether gloo carries them out.
    """

    def __init__(self, rank_config: RankConfiguration, *, gloo: bool) -> None:
        self._rank_config, self._gloo = rank_config, gloo
        # Process groups take turns, and of several devices each has its own.
        turns = max(rank_config.options.process_groups, len(rank_config.execution.devices))
        self._lanes = [(WORLD, str(number)) for number in range(turns)] if turns > 1 else [_MAIN_LANE]
        self._made: dict[tuple[tuple[int, ...], ...], Scheduled] = {}

    def __call__(self, iteration: int) -> Scheduled:
        """Return what an iteration sends; the same object where buckets are the same."""
        rank_config = self._rank_config
        parameters, groups = rank_config.workload.parameters, rank_config.plans.plan(iteration).groups()
        if rank_config.remaps(dropped := rank_config.dropped(iteration)):
            groups = [group for group in remap_gradients(parameters, groups, dropped) if group]
        if (ready := self._made.get(key := tuple(groups))) is None:
            schedule = schedule_of_buckets(rank_config.options, parameters, groups)
            ready = self._made[key] = make_ready(schedule, rank_config, self._lanes, gloo=self._gloo)
        return ready
