"""Everything that a step rests on, from workload, machine, options and calibration: found here once, or refused.

Below, nothing looks a GPU up, refuses an option, or asks what kind of clock a workload was recorded on. `resolve` is
the order in which things are known; the `check_*` before it refuse node templates, extents and schedules that cannot be
simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter

import simpy

from ddpsim.bucketing import BucketCaps, BucketPlan
from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.conditions import GPU_BACKENDS
from ddpsim.collectives.copies import byte_copy_s
from ddpsim.common.errors import InputError
from ddpsim.schedules.message import WORLD
from ddpsim.schedules.named import scheme_named
from ddpsim.schedules.schedule import Schedule
from ddpsim.simulation.communication import Assumptions, JobResources
from ddpsim.simulation.ddp_costs import CodecCosts, Costs
from ddpsim.simulation.graph import ExecutionModel
from ddpsim.simulation.jobs.device_split import check_devices
from ddpsim.simulation.jobs.graph_cuts import split_into_graphs
from ddpsim.simulation.jobs.job_options import NO_INPUT
from ddpsim.simulation.jobs.plans import Plans, PolicyView, plans_of
from ddpsim.simulation.jobs.representatives import RankKind, SimulatedRank, representatives_of
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.simulation.jobs.stages import ModelPart, pace_of_part
from ddpsim.simulation.lanes import check_layer_groups
from ddpsim.simulation.rank_config import NOTHING, RankConfiguration
from ddpsim.simulation.scheduling import (
    BucketSchedules,
    carry_out,
    in_every_iteration,
    lanes_of,
    make_ready,
    merge_ranks,
    schedule_of,
)
from ddpsim.topology.beside import place_beside
from ddpsim.topology.graph import Placement
from ddpsim.workload import Workload
from ddpsim.workload.gpus import AchievedGpu, gpu_of
from ddpsim.workload.iteration_profile import check_left, find_dropped, leave_out, leave_unused, paces
from ddpsim.workload.replayed import jitter_of

MOST_MOMENTS = 4_000_000
"""Gradients of all iterations and ranks that one simulation records: about 1.2 GB of them."""

MOST_APART = 64
"""Ranks that each go their own way; chosen by hand: their steps are events of one queue."""


def check_templates(placement: Placement, workloads: Mapping[str | None, Workload], parts: int = 1) -> None:
    """Refuse node templates whose workload is not given, or is of another model than the one that is trained.

    Args:
        workloads: by name; None is the one that is trained.
        parts: that this model is cut into.

    Raises:
        InputError: such a template.
    """
    trained = workloads[None]
    for node_class in placement.classes:
        place, name = f"node template {node_class.template.name!r}", node_class.template.workload
        if name is None:
            continue
        if parts > 1:
            what = f"it has a workload of its own, {name!r}, and a pipeline cuts one model into stages"
            raise InputError(what, place=place, remedy="leave `workload` out there, or give no `pipeline`")
        if name not in workloads:
            raise InputError(f"names the workload {name!r}, which is not given", place=place)
        other = workloads[name]
        ours, theirs = ([(p.name, p.shape, p.dtype) for p in each.parameters] for each in (trained, other))
        if ours != theirs or trained.buffers != other.buffers:
            what = "parameters" if ours != theirs else "buffers"
            remedy = f"name one of the model that is trained, {trained.name!r}, captured on the template's GPU"
            raise InputError(f"the workload {other.name!r} has other {what}", place=place, remedy=remedy)


def check_extent(iterations: int, parameters: int, kinds: int = 1) -> None:
    """Refuse what would record more times than memory holds.

    Raises:
        InputError: too many iterations, for so many parameters and kinds of ranks.
    """
    if (records := iterations * kinds * parameters) > MOST_MOMENTS:
        ranks = f"{kinds} kinds of ranks" if kinds > 1 else "a rank"
        what = f"{iterations} iterations of {parameters} gradients on {ranks} are {records:.3g} moments to record"
        remedy = f"ask for fewer `iterations`, micro-batches (`accumulate`) or `stragglers`: at most {MOST_MOMENTS} fit"
        raise InputError(what, remedy=remedy)


def check_schedule(
    schedule: Schedule, placement: Placement, backend: str, options: Options, *, one_thread: bool
) -> None:
    """Refuse ranks of one process, and ranks that each go their own way, where they cannot be.

    Args:
        one_thread: whether ranks compute on the thread that launches, as on a CPU.

    Raises:
        InputError: of one process several machines, no GPUs, or another backend than NCCL, which copies between them;
            more ranks than are simulated one by one.
    """
    if not schedule.ranks_meet and options.comm == "real" and placement.world_size > MOST_APART:
        what = f"{placement.world_size} ranks, each of which goes its own way"
        remedy = f"give {MOST_APART} at most, or leave out `async`"
        raise InputError(what, place="scheme 'parameter-server'", remedy=remedy)
    if not schedule.one_process:
        return
    place = f"scheme={schedule.scheme}"
    if placement.nodes > 1:
        what = f"its ranks are threads of one process, {placement.nodes} nodes are asked for"
        raise InputError(what, place=place, remedy="ask for one node, or take `ddp`")
    if one_thread or backend not in GPU_BACKENDS:
        what = f"it moves parameters and gradients between GPUs, not by {backend}"
        raise InputError(what, place=place, remedy="use a workload of a GPU and `backend=nccl`, or take `ddp`")


WARM_UP = 3
"""Iterations simulated before those that count: the host's lead over the device settles in two."""


@dataclass(frozen=True, slots=True)
class SimulatedIterations:
    """Which iterations are simulated, and which of them count.

    Attributes:
        begin, end: of those that count, half open.
        total: that are simulated.
        repeats: for how many more micro-batches of its step the last but one of each stands.
    """

    begin: int
    end: int
    total: int
    repeats: int = 0

    @classmethod
    def of(cls, options: Options, periods: int, warm_up: int = WARM_UP, repeats: int = 0) -> SimulatedIterations:
        """Return the extent of a run that counts so many periods, each of which sends the same.

        One more is simulated, which sees to their end messages that the last one leaves in flight.
        """
        begin, end = warm_up * options.period, (warm_up + periods) * options.period
        return cls(begin, end, end + options.period, repeats)

    def fit(self, options: Options, schedule: Schedule) -> SimulatedIterations:
        """Return the extent of the same periods of a schedule.

        Where forward makes updates, it takes `WARM_UP` until periods are alike. The reducer leaves nothing in flight,
        which is awaited by the end of backward, nor does a pipeline, whose last step all its ranks await.
        """
        later = 0 if schedule.update == "after_backward" else max(0, WARM_UP * options.period - self.begin)
        in_flight = options.fixed_schedule and schedule.place is None
        begin, end = self.begin + later, self.end + later
        return SimulatedIterations(begin, end, self.total + later if in_flight else end, self.repeats)


@dataclass(frozen=True, slots=True, eq=False)
class ResolvedJob:
    """All that a step rests on.

    Attributes:
        job: what its ranks compute and communicate on.
        workload: of rank 0, as it was asked for.
        kinds: of ranks.
        simulated_ranks: who is simulated for which of them; by rank of the graph, as `rank_configs`.
        rank_configs: what each simulated rank runs.
        extent: which iterations are simulated, and which of them count.
    """

    job: JobResources
    workload: Workload
    kinds: Sequence[RankKind]
    simulated_ranks: Sequence[SimulatedRank]
    rank_configs: Sequence[RankConfiguration]
    extent: SimulatedIterations

    @property
    def schedule(self) -> Schedule:
        """What rank 0 sends in the first iteration."""
        return self.rank_configs[0].scheduled(0).schedule


Workloads = Mapping[str | None, Workload]
"""What ranks replay, by the workload that their node template names for its own GPUs; None is that of all others."""

Drawn = tuple[Sequence[SimulatedRank], Plans]
"""What has been drawn already: who is simulated for which ranks, and the buckets of each iteration."""


def resolve(
    workload: Workload | Workloads,
    placement: Placement,
    options: Options,
    assumed: Assumptions | None = None,
    *,
    extent: SimulatedIterations | None = None,
    drawn: Drawn | None = None,
) -> ResolvedJob:
    """Return all that a step rests on.

    Args:
        workload: one rank's iteration without communication, or several by node template.
        placement: which ranks, where.
        options: of the run.
        assumed: constants in force, and what else is taken as given; None is what the priors say.
        extent: which iterations are simulated, fitted to what is sent; None is all that were asked for after `WARM_UP`.
        drawn: in place of what is drawn for each kind of rank, and of the options' buckets.

    Raises:
        InputError: what cannot be: options that do not fit the workload or the ranks, a template's workload that is not
            given or is another model's, a backend, an algorithm or a scheme that cannot be on the machine, more than
            can be simulated.
        CalibrationError: a calibration of another backend.
        PlanError: a schedule that cannot be carried out.
    """
    workloads: Workloads = {None: workload} if isinstance(workload, Workload) else workload
    # First what was asked for against itself, the workload and the ranks: nothing is looked up for what is refused.
    workload, assumed = workloads[None], assumed or Assumptions()
    calibration, options = assumed.calibration, assumed.scale(options)
    placement = assumed.on(placement)
    if (other := options.beside) is not None:
        placement, _ = place_beside(placement, other.nodes, other.gpus_per_node, alternate=other.alternate)
    options.check(workload)
    options.check_ranks(placement.world_size)
    if options.fixed_schedule:
        check_layer_groups(placement, options.tensor_parallel)
        check_layer_groups(placement, options.expert_parallel, "expert_parallel")
        near = options.cut.near_ranks(placement.world_size, options.tensor_parallel)
        check_layer_groups(placement, near, "pipeline")
    check_templates(placement, workloads, options.cut.stages)
    check_devices(workload, placement, options)
    options = options.on(workload, placement.topology)
    backend = options.backend_for(workload)
    gpu = gpu_of(workload.gpu, workload.provenance)
    costs = Costs.of(backend, calibration, gpu, scale_host=options.scale_host)
    costs_of = partial(Costs.of, backend, calibration, terms=True, scale_host=options.scale_host)
    # An assumed factor is on what the workload's own host does: DDP's costs are constants with doubts of their own.
    options = replace(options, scale_host=options.scale_host * assumed.host)
    parts = options.parts(workload)
    kinds = list(_kinds_of(workloads, placement, options, costs, parts))
    if not options.ranks_meet:
        # Where ranks do not wait for each other none stands for another: whom it meets at a server differs.
        kinds = sorted((replace(kind, ranks=[rank]) for kind in kinds for rank in kind.ranks), key=attrgetter("first"))
    simulated_ranks, planned = ([], None) if drawn is None else drawn
    schedules, ranks = [NOTHING.schedule], placement.world_size
    # The reducer's schedules differ from iteration to iteration, where a policy rebuilds buckets: `BucketSchedules`
    # makes them below. Any other is one for all iterations, or one for each part of the model.
    if options.fixed_schedule:
        schedules.clear()
        for part in parts:
            first = next(kind.workload for kind in kinds if kind.place == part.place)
            plan = options.bucket_plan(first, part.indices) if planned is None else planned.plan(0)
            schedules.append(schedule_of(options, first, plan, placement, backend, calibration, part.place))
            check_schedule(schedules[-1], placement, backend, options, one_thread=first.one_clock)
    schedule = schedules[0]
    if extent is None:
        extent = SimulatedIterations.of(options, max(options.iterations_of(kind.workload) for kind in kinds))
    extent = extent.fit(options, schedule)
    # Micro-batches that one stands for are no events, but records in the trace.
    repeated = (extent.end - extent.begin) // options.period * extent.repeats
    check_extent(extent.end + repeated, len(kinds[0].workload.parameters), len(kinds))
    if not simulated_ranks:
        simulated_ranks = [one for kind in kinds for one in representatives_of(kind, options, extent.total, ranks)]
    rank_configs = list(_rank_configs_of(simulated_ranks, parts, ranks, options, costs_of, extent.total, planned))
    if assumed.input != 1:
        rank_configs = [each.with_input(assumed.input) for each in rank_configs]
    if not options.fixed_schedule:
        rank_configs = carry_out(rank_configs, partial(BucketSchedules, gloo=backend == "gloo"))
    else:
        copy_s = byte_copy_s(placement) if schedule.sharding.offload and not kinds[0].workload.one_clock else 0.0
        if schedule.one_process:
            rank_configs = [merge_ranks(each, ranks) for each in rank_configs]
        make = partial(make_ready, lanes=lanes_of(schedules), gloo=backend == "gloo", host_copy_s=copy_s)
        rank_configs = carry_out(rank_configs, lambda each: in_every_iteration(make(schedules[each.part.place], each)))
    job = JobResources(placement, options, calibration, backend, costs, gpu, assumed.wire_factor, assumed.latency)
    # Last, for it makes the transports: a search for channels, whose result the run takes from `job`.
    _check_transports(job, rank_configs[0], extent)
    return ResolvedJob(job, workload, kinds, simulated_ranks, rank_configs, extent)


def with_buckets(resolved: ResolvedJob, caps: BucketCaps, plan: BucketPlan | None = None) -> ResolvedJob | None:
    """Return a resolved job with other buckets, and all else as it was; None where that rests on them too.

    A schedule's messages, what policies rebuild, the graphs of a compiled step and a job beside do.

    Raises:
        InputError: more single transfers than bearable.
    """
    before = resolved.job.options
    if before.fixed_schedule or before.compiled or before.disturbed or before.order is not None:
        return None
    options = replace(before, caps=caps, plan=plan)
    plans = Plans([0], [options.bucket_plan(resolved.simulated_ranks[0].kind.workload)])
    rank_configs = [replace(each, options=options, plans=plans) for each in resolved.rank_configs]
    rank_configs = carry_out(rank_configs, partial(BucketSchedules, gloo=resolved.job.backend == "gloo"))
    job = replace(resolved.job, options=options)
    _check_transports(job, rank_configs[0], resolved.extent)
    return replace(resolved, job=job, rank_configs=rank_configs)


def resolve_alone(
    workload: Workload, options: Options, calibration: Calibration | None, total: int
) -> RankConfiguration:
    """Return what one process without DDP runs.

    Args:
        calibration: says what adding gradients takes, where they are accumulated.
        total: iterations, in all.

    Raises:
        InputError: more iterations than can be simulated.
    """
    scaled = tuple(paces(workload, options.scale_compute, options.scale_host, options.scale))
    kind = RankKind(range(1), workload, scaled)
    check_extent(total, len(workload.parameters))
    costs_of = partial(Costs.of, options.backend_for(workload), calibration, scale_host=options.scale_host)
    drawn = list(representatives_of(kind, options, total))
    [rank_config] = _rank_configs_of(drawn, options.parts(workload), 0, options, costs_of, total)
    return rank_config


def _kinds_of(
    workloads: Workloads, placement: Placement, options: Options, costs: Costs, parts: Sequence[ModelPart]
) -> Iterator[RankKind]:
    """Yield the ranks by workload, straggler factor, unused parameters and part of the model, lowest rank first."""
    trainers = scheme_named(options.scheme).trainers(placement.world_size, placement.gpus_per_node)
    unused = {rank: options.unused_by(rank, workloads[None].parameters) for rank in options.unused}
    # What no rank uses has no gradient anywhere; what some rank uses, others still reduce as zeros.
    no_gradient: frozenset[int] = frozenset.intersection(*unused.values()) if len(unused) == trainers else frozenset()
    members: dict[tuple[str | None, float, frozenset[int], int], list[int]] = {}
    for node_class in placement.classes:
        name = node_class.template.workload
        for node in node_class.node_indices:
            for gpu in range(placement.gpus_per_node):
                rank = placement.rank_of(node, gpu)
                if rank >= trainers:
                    continue
                place = 0
                if len(parts) > 1:
                    place = options.cut.place_of(rank, placement.world_size, options.tensor_parallel)
                kind = name, options.stragglers.get(rank, 1.0), unused.get(rank, frozenset()), place
                members.setdefault(kind, []).append(rank)
    # Ranks of one kind differ by their draws alone. The kind of rank 0 is first: a trace and a schedule are its.
    for (name, factor, unused_here, place), ranks in sorted(members.items(), key=lambda each: min(each[1])):
        source = workloads[name]
        beside_others = placement.gpus_per_node > 1 and source.ranks == 1 and not source.timed
        shared = costs.shared_compute_slowdown if beside_others else 1.0
        scaled = paces(source, options.scale_compute * factor * shared, options.scale_host, options.scale)
        if len(parts) > 1:
            scaled, source = [pace_of_part(each, parts[place]) for each in scaled], parts[place].workload
        if unused_here:
            scaled = [leave_unused(each, unused_here, no_gradient, source.parameters) for each in scaled]
        if options.compiled:
            scaled = split_into_graphs(scaled, source, options, factor, costs.graph_s, costs.graph_passes)
        spread, of_nodes = (0.0, 0.0) if source.timed else (costs.pace_spread, costs.node_spread)
        nodes = len({rank // placement.gpus_per_node for rank in ranks})
        jitter, own = jitter_of(source) if source.iterations > 1 else 0.0, tuple(scaled)
        yield RankKind(sorted(ranks), source, own, spread, jitter, beside_others, of_nodes, nodes, place)


def _rank_configs_of(
    simulated_ranks: Sequence[SimulatedRank],
    parts: Sequence[ModelPart],
    ranks: int,
    options: Options,
    costs_of: Callable[[AchievedGpu | None], Costs],
    total: int,
    planned: Plans | None = None,
) -> Iterator[RankConfiguration]:
    """Yield what each simulated rank runs.

    Args:
        parts: of the model, by place.
        ranks: of the job; 0 is one process without DDP.
        costs_of: returns DDP's costs on a GPU, or for None on a CPU.
        total: iterations.
        planned: buckets; None are those of the options.
    """
    cycle, first = options.sync_every, simulated_ranks[0].kind.workload
    simulated_ranks, dropped = _leave_layers_out(simulated_ranks, options)
    plans = planned
    if plans is None and len(parts) == 1:
        views = [view for simulated in simulated_ranks for view in simulated.seen]
        plans = plans_of(options, first, views, range(cycle - 1, total, cycle), total)
    # Of one workload all but the pace is equal, and of thousands of parameters takes long to find.
    alike: dict[int, RankConfiguration] = {}
    for simulated in simulated_ranks:
        own = simulated.kind.workload
        if id(own) not in alike:
            gpu, parameters = gpu_of(own.gpu, own.provenance), own.parameters
            costs, codec = costs_of(gpu), None
            stage = None if options.input_stage == NO_INPUT else options.input_of(own)
            if options.compression != "none":
                codec = CodecCosts(options.codec, parameters, max(ranks, 1), costs, gpu=gpu, one_thread=own.one_clock)
            part = parts[simulated.kind.place]
            model = ExecutionModel(own.one_clock, own.timed, own.device_shares)
            of_own = plans or Plans([0], [options.bucket_plan(own, part.indices)])
            alike[id(own)] = RankConfiguration(
                own, part, model, gpu, options, costs, of_own, simulated.pace, dropped, codec,
                [costs.copies_s(1, each.size_bytes) for each in parameters] if ranks else [],
                total, max(ranks, 1), ddp=ranks > 0, input_stage=stage,
            )  # fmt: skip
        yield replace(alike[id(own)], pace=simulated.pace)


def _leave_layers_out(
    simulated_ranks: Sequence[SimulatedRank], options: Options
) -> tuple[Sequence[SimulatedRank], Callable[[int], frozenset[int]]]:
    """Return ranks without the layers that each iteration leaves out, and whose parameters those are, by iteration."""
    if not options.drop:
        return simulated_ranks, lambda iteration: frozenset()
    parameters = simulated_ranks[0].kind.workload.parameters
    plan = options.drop_plan(parameters)
    dropped = find_dropped(plan, options.sync_every)
    for simulated in simulated_ranks:
        check_left(plan, simulated.kind.paces, parameters)
    left = partial(leave_out, dropped=dropped, parameters=parameters)
    seen = [[PolicyView(left(each.pace), each.context) for each in simulated.seen] for simulated in simulated_ranks]
    return [
        replace(one, pace=left(one.pace), seen=own) for one, own in zip(simulated_ranks, seen, strict=True)
    ], dropped


def _check_transports(job: JobResources, rank_config: RankConfiguration, extent: SimulatedIterations) -> None:
    """Refuse a job whose messages nothing on its machine can carry; what was made for that is kept.

    Raises:
        InputError: no such transport, or more single transfers than bearable.
    """
    options = job.options
    shared = job.communication(simpy.Environment(), rank_config.scheduled(0))
    if options.fidelity == "steps" and options.comm == "real":
        schedule = rank_config.scheduled(extent.total - 1).schedule
        own = WORLD in schedule.patterns
        messages = [(each.op, each.size_bytes) for each in schedule if each.group == WORLD and not own]
        shared.collectives.check_extent(messages, extent.total // options.sync_every)
