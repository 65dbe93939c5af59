"""From a workload, a placement and options to a `Trace`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import simpy

from ddpsim.bucketing import BucketPlan
from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.execute import Collectives, make_transport
from ddpsim.errors import InputError
from ddpsim.jobs.simulated import Options
from ddpsim.network.fluid import Network
from ddpsim.operations import Operation
from ddpsim.schedules.named import scheme_named, servers_named
from ddpsim.schedules.schedule import Schedule
from ddpsim.simulation.beside import UNDISTURBED, Beside
from ddpsim.simulation.compiled import graphs_of, in_graphs
from ddpsim.simulation.costs import Costs
from ddpsim.simulation.cpu_rank import CpuRank
from ddpsim.simulation.crowd import Crowd
from ddpsim.simulation.dropping import check_left, dropped_by, leaving_out
from ddpsim.simulation.gpu_rank import GpuRank
from ddpsim.simulation.inputs import InputFeed, alone_on, copies_on
from ddpsim.simulation.kinds import Kind, latest_draw, own_draw
from ddpsim.simulation.lanes import Lanes
from ddpsim.simulation.one_process import check_one_process, in_one_process
from ddpsim.simulation.pace import paces
from ddpsim.simulation.plans import Plans, Seen, plans_of
from ddpsim.simulation.processor import Process, Processor
from ddpsim.simulation.rank import LATEST, Progress, Setting
from ddpsim.simulation.reduction import CodecCosts
from ddpsim.simulation.rendezvous import BUFFERS, Launch, Meetings, SimulatedCommunicator
from ddpsim.simulation.replayed import Draw
from ddpsim.simulation.scheduled import Scheduled, in_rings, setup_of
from ddpsim.simulation.servers import Attendance, ServerLinks, Staleness
from ddpsim.simulation.timed_rank import TimedRank
from ddpsim.simulation.torch_line import torch_line
from ddpsim.simulation.variation import factors_of, varied
from ddpsim.topology.graph import Placement
from ddpsim.trace.records import Iteration, Trace
from ddpsim.trace.spans import spans_of
from ddpsim.workload import Workload
from ddpsim.workload.gpus import gpu_of

WARM_UP = 3
"""Iterations simulated before those that count: the host's lead over the device settles in two."""

MOST_MOMENTS = 4_000_000
"""Gradients of all iterations and ranks that one simulation records: about 1.2 GB of them."""

SEGMENT_ALIGNMENT = 16
"""Bytes at multiples of which messages are cut, as NCCL aligns what it copies fastest."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Simulated(Trace):
    """A simulation leaves its trace, with the buckets of its last iteration.

    Attributes:
        schedule: that took the place of DDP's buckets; None where nothing did.
    """

    plan: BucketPlan
    schedule: Schedule | None = None


def simulate(
    workload: Workload,
    placement: Placement,
    options: Options,
    calibration: Calibration | None = None,
    *,
    workloads: dict[str, Workload] | None = None,
    wire_factor: Callable[[int], float] | None = None,
    every_rank: bool = False,
    progress: Progress | None = None,
    warm_up: int = WARM_UP,
    whole: bool = True,
    draws: Sequence[Draw] | None = None,
    planned: Plans | None = None,
) -> Simulated:
    """Simulate training and return the trace of rank 0 and of the first rank of every other kind.

    Args:
        workload: one rank's iteration without communication.
        placement: which ranks, where.
        options: of the run.
        calibration: constants of the transport and of DDP's own costs; None takes the documented priors.
        workloads: by name, those that node templates name for their own GPUs.
        wire_factor: factor on the time of a collective of some bytes: an end of a calibration's band.
        every_rank: simulate each rank as itself instead of one of each kind and the latest of the others; devices then
            do not spread.
        progress: called with the iterations done by the first rank, and how many there are.
        warm_up: iterations simulated before those that count; no fewer than `WARM_UP` where forward makes updates.
        whole: whether messages that the last iteration leaves in flight are seen to their end; they change no period.
        draws: who stands for which ranks, in place of what is drawn for each kind; see `ddpsim.simulation.replayed`.
        planned: buckets by iteration, in place of those of the options.

    Raises:
        InputError: a straggler beyond the world size, a template's workload that is not given or is another model's,
            options that do not fit the workload.
    """
    options.check(workload)
    backend = options.backend_for(workload)
    costs = Costs.of(backend, calibration, gpu_of(workload.gpu, workload.provenance))
    kinds = _kinds(workload, placement, options, workloads or {}, costs)
    if every_rank or options.asynchronous:
        kinds = _apart(kinds)
    cycle = options.period
    total = (warm_up + max(options.iterations_of(kind.workload) for kind in kinds)) * cycle
    _check_extent(total, kinds)
    ending = (
        cycle if options.scheduled and whole else 0
    )  # what a schedule's last iteration leaves in flight needs one more
    world_size = placement.world_size
    drawn = draws or [draw for kind in kinds for draw in _draws(kind, options, total + ending, world_size)]
    settings = _settings(drawn, world_size, options, backend, calibration, total + ending, planned=planned)
    job = _Job(placement, options, calibration, backend, costs, wire_factor, progress)
    if options.scheduled:
        settings = job.scheduled(settings)
        if warm_up < WARM_UP and settings[0].scheduled and not settings[0].scheduled.updates:
            return simulate(
                workload, placement, options, calibration, workloads=workloads, wire_factor=wire_factor,
                every_rank=every_rank, progress=progress, warm_up=WARM_UP, whole=whole, draws=draws, planned=planned,
            )  # fmt: skip
    records = job.run(drawn, settings)
    counted_gradients = {} if job.staleness is None else {"servers": job.staleness.document()}
    counted = [record for record in records if record.rank >= 0 and warm_up * cycle <= record.index < total]
    plan = settings[0].plan(total - 1)
    plan = replace(plan, call=torch_line(options, plan, [kind.workload for kind in kinds]))
    provenance = {
        "simulated": True,
        "seed": options.seed,
        "plan": plan.document(),
        "plan_fingerprint": plan.fingerprint(),
        "topology": placement.topology.name,
        "topology_fingerprint": placement.topology.fingerprint(),
        "workload": workload.name,
        **counted_gradients,
        "options": {
            "drop": dict(options.drop),
            "scheme": options.scheme,
            "overlap": options.overlap,
            **options.periodic,
        },
    }
    spans, scheduled = spans_of(counted, backend), settings[0].scheduled
    schedule = None if scheduled is None else scheduled.schedule
    return Simulated(placement.world_size, backend, counted, spans, provenance, plan=plan, schedule=schedule)


def simulate_local(
    workload: Workload,
    options: Options,
    progress: Progress | None = None,
    calibration: Calibration | None = None,
) -> list[Iteration]:
    """Return the iterations of one process without DDP, on its own; `progress` is as that of `simulate`.

    Args:
        calibration: says what adding gradients takes, where they are accumulated.
    """
    cycle = options.accumulate
    total = (WARM_UP + options.iterations_of(workload)) * cycle
    kind = Kind(range(1), workload, tuple(paces(workload, options.scale_compute, options.scale_host, options.scale)))
    _check_extent(total, [kind])
    draws = list(_draws(kind, options, total))
    [setting] = _settings(draws, 1, options, options.backend_for(workload), calibration, total, ddp=False)
    env = simpy.Environment()
    processor = Processor(env, UNDISTURBED, lambda busy: None)
    rank = _rank(env, 0, setting, processor, SimulatedCommunicator(env, None, 1, 1, processor))
    rank.progress = progress
    if (stage := setting.input_stage) is not None:
        rank.feed = InputFeed(env, stage, alone_on(env, stage, workload.gpu))
    env.run(env.process(rank.run()))
    return [record for record in rank.records if record.index >= WARM_UP * cycle]


def _check_extent(iterations: int, kinds: list[Kind]) -> None:
    """Refuse what would record more moments than memory holds.

    Raises:
        InputError: too many iterations, for so many parameters and kinds of ranks.
    """
    parameters = len(kinds[0].workload.parameters)
    if (moments := iterations * len(kinds) * parameters) > MOST_MOMENTS:
        ranks = f"{len(kinds)} kinds of ranks" if len(kinds) > 1 else "a rank"
        what = f"{iterations} iterations of {parameters} gradients on {ranks} are {moments:.3g} moments to record"
        remedy = f"ask for fewer `iterations`, micro-batches (`accumulate`) or `stragglers`: at most {MOST_MOMENTS} fit"
        raise InputError(what, remedy=remedy)


def _draws(kind: Kind, options: Options, total: int, world_size: int = 0) -> Iterator[Draw]:
    """Yield who stands for the ranks of a kind: the first, and where they can differ the latest of the others.

    One process without DDP, a world of 0, is nobody's straggler.
    """
    factors = factors_of(options, kind.ranks, world_size, total) if world_size else None
    one_clock = kind.workload.one_clock
    alone = own_draw(kind, options.seed, total)
    scheme = scheme_named(options.scheme)
    together = options.sync_every * (scheme.steps if scheme.apart else 1)
    latest = latest_draw(kind, options.seed, total, together, options.accumulate)
    if latest is None and factors is not None and kind.count > 1:
        latest = alone
    alike = kind.ranks if latest is None else kind.ranks[:1]
    first = varied(alone, None if factors is None else factors[:1], one_clock=one_clock)
    yield Draw(kind.first, alike, kind.workload, first, kind.paces, (Seen(first),))
    if latest is not None:
        latest = varied(latest, None if factors is None else factors[1:], one_clock=one_clock)
        yield Draw(LATEST, kind.ranks[1:], kind.workload, latest, kind.paces, (Seen(latest),))


def _settings(
    draws: Sequence[Draw],
    world_size: int,
    options: Options,
    backend: str,
    calibration: Calibration | None,
    total: int,
    *,
    ddp: bool = True,
    planned: Plans | None = None,
) -> list[Setting]:
    """Return what each simulated rank runs."""
    cycle, first = options.sync_every, draws[0].workload
    drop_plan = options.drop_plan(first.parameters)
    for draw in draws:
        check_left(drop_plan, draw.records, first.parameters)
    dropped = dropped_by(drop_plan, cycle)
    plans = planned
    if plans is None:
        seen = [Seen(leaving_out(s.pace, dropped, first.parameters), s.context) for d in draws for s in d.seen]
        plans = plans_of(options, first, seen, range(cycle - 1, total, cycle), total)
    alone = world_size == 1 and ddp
    settings = []
    for draw in draws:
        own, pace = draw.workload, leaving_out(draw.pace, dropped, first.parameters)
        costs = Costs.of(backend, calibration, gpu_of(own.gpu, own.provenance))
        codec = CodecCosts(options.codec, own, world_size, costs)
        confers = plans.conferring(options, costs, world_size)
        settings.append(
            Setting(
                own, plans.plan, options, costs, pace, dropped, codec, total,
                ddp=ddp, alone=alone, input_stage=options.input_of(own), confers=confers,
            )
        )  # fmt: skip
    return settings


@dataclass(slots=True)
class _Job:
    placement: Placement
    options: Options
    calibration: Calibration | None
    backend: str
    costs: Costs
    wire_factor: Callable[[int], float] | None
    progress: Progress | None
    staleness: Staleness | None = None

    def scheduled(self, settings: list[Setting]) -> list[Setting]:
        """Return `settings` with the job's schedule."""
        first, options = settings[0].workload, self.options
        ours = replace(options.collective, rings=True)
        transport = make_transport(self.placement, self.backend, self.calibration, ours)
        plan = settings[0].plan(0)
        gloo = self.backend == "gloo"
        setup = setup_of(options, first, plan, self.placement, transport.time_s, blocking=gloo)
        schedule = options.schedule(setup).in_segments(SEGMENT_ALIGNMENT)
        if schedule.one_process:
            check_one_process(schedule, self.placement, self.backend, first)
            settings = [in_one_process(setting, self.placement.world_size) for setting in settings]
        return [
            replace(
                setting,
                scheduled=Scheduled.of(schedule, setting.workload, setting.costs, options, gloo=gloo),
            )
            for setting in settings
        ]

    def run(self, draws: Sequence[Draw], settings: list[Setting]) -> list[Iteration]:
        """Run the setting of each simulated rank to its end and return their records."""
        env = simpy.Environment()
        scheduled = settings[0].scheduled
        rings = scheduled is not None and in_rings(scheduled.schedule)
        collectives = self._collectives(env, rings, self.placement)
        lanes = None
        if scheduled is not None:
            groups = scheduled.schedule.groups
            lanes = Lanes.of(
                scheduled.lanes,
                groups,
                collectives,
                self.placement,
                partial(self._collectives, env, rings),
                scheduled.schedule.patterns,
            )

        crowd = Crowd(env, self.costs, self.placement.world_size, collectives.estimate_s)

        def transfer(launch: Launch) -> simpy.Event:
            return crowd.around(launch, sent(launch))

        def sent(launch: Launch) -> simpy.Event:
            if launch.operation == BUFFERS:
                return collectives.broadcast(launch.size_bytes) & env.timeout(self.costs.broadcast_s)
            if lanes is None and launch.operation == Operation.ALLREDUCE:
                return collectives.allreduce(launch.size_bytes, launch.lane)
            if lanes is None:
                return collectives.run(Operation(launch.operation), launch.size_bytes, launch.lane)
            return lanes.run(launch)

        if self.options.comm == "real":
            every = settings[0].iterations
            sizes = [bucket.size_bytes for bucket in settings[0].plan(every - 1).buckets]
            collectives.check_extent(sizes, every // self.options.sync_every)
        meetings = Meetings(env, len(settings), transfer) if self.options.comm == "real" else None
        alone = self._alone(env, scheduled)
        on_busy = _busy_ranks(collectives, self.costs)
        world_size = self.placement.world_size
        count = self.options.process_groups if lanes is None else len(lanes.groups)
        ranks = []
        for draw, setting in zip(draws, settings, strict=True):
            of_lanes = () if lanes is None else lanes.transports()
            beside = Beside.of(setting.costs, setting.workload, collectives.transport, world_size, of_lanes)
            processor = Processor(env, beside, on_busy, self.costs.copy_slowdown)
            communicator = SimulatedCommunicator(
                env, meetings if alone is None else alone(draw.rank), count, collectives.streams_per_group, processor,
                setting.late_s,
            )  # fmt: skip
            rank = _rank(env, draw.rank, setting, processor, communicator)
            rank.feed = self._feed(env, setting, collectives.network, draw.stands_for)
            ranks.append(rank)
        ranks[0].progress = self.progress
        apart_s = 0.0 if alone is None else _computing_s(settings[0]) / len(ranks)
        env.run(env.all_of([env.process(_later(env, place * apart_s, rank)) for place, rank in enumerate(ranks)]))
        return [record for rank in ranks for record in rank.records]

    def _feed(
        self, env: simpy.Environment, setting: Setting, network: Network, ranks: Sequence[int]
    ) -> InputFeed | None:
        """Return what brings a simulated rank its batches; on a CPU nothing is copied."""
        stage = setting.input_stage
        if stage is None:
            return None
        if setting.workload.one_clock or stage.copy_bytes == 0:
            return InputFeed(env, replace(stage, copy_bytes=0), lambda: env.timeout(0.0))
        together = range(self.placement.world_size) if stage.in_turn else ranks
        closed = self.options.fidelity == "closed"
        return InputFeed(env, stage, copies_on(network, self.placement, together, stage, closed=closed))

    def _alone(self, env: simpy.Environment, scheduled: Scheduled | None) -> Callable[[int], Attendance] | None:
        """Return what sends each rank's messages where ranks do not meet; None where they do."""
        asked = servers_named(self.options.scheme)
        if scheduled is None or asked is None or not asked.asynchronous or self.options.comm != "real":
            return None
        links = ServerLinks(env, self.placement, self.backend, self.calibration, asked.servers)
        self.staleness = links.staleness
        buckets = [
            [message.parameters for message in scheduled.schedule if (message.group, message.stream) == lane]
            for lane in scheduled.lanes
        ]
        return lambda rank: links.attendance(rank, buckets)

    def _collectives(
        self, env: simpy.Environment, rings: bool, placement: Placement, pattern: str | None = None
    ) -> Collectives:
        options = replace(self.options.collective, rings=rings)
        return Collectives(
            env,
            placement,
            backend=self.backend,
            calibration=self.calibration,
            options=options if pattern is None else replace(options, algorithm=pattern),
            factor=self.wire_factor,
        )


def _computing_s(setting: Setting) -> float:
    """Return about how long a rank computes in an iteration, at its first pace."""
    pace = setting.pace(0)
    return max(pace.host_s, pace.work_s)


def _later(env: simpy.Environment, seconds: float, rank: CpuRank | GpuRank) -> Process:
    """Let a rank begin after some time: those that do not meet go on evenly apart, as they drift to in a long run."""
    if seconds > 0:
        yield env.timeout(seconds)
    yield from rank.run()


def _rank(
    env: simpy.Environment, number: int, setting: Setting, processor: Processor, communicator: SimulatedCommunicator
) -> CpuRank | GpuRank:
    workload = setting.workload
    kind = TimedRank if workload.timed else CpuRank if workload.on_cpu else GpuRank
    return kind(env, number, setting, processor, communicator)


def _busy_ranks(collectives: Collectives, costs: Costs) -> Callable[[bool], None]:
    """Return a callback that slows the network while any rank's processor is busy.

    A collective as a whole, as `communication_slowdown` says; its threads' steps, where that is more, by
    `step_slowdown`.
    """
    network, slowdown = collectives.network, costs.slowed_by(collectives.transport.hops)
    steps = max(costs.step_slowdown / slowdown, 1.0)
    if slowdown == steps == 1.0:
        return lambda busy: None
    busy_count = 0

    def change(busy: bool) -> None:
        nonlocal busy_count
        busy_count += 1 if busy else -1
        if busy_count == (1 if busy else 0):  # the first that begins, or the last that ends
            network.set_speed(1 / slowdown if busy else 1.0)
            network.set_host_speed(1 / steps if busy else 1.0)

    return change


def _kinds(
    workload: Workload, placement: Placement, options: Options, workloads: dict[str, Workload], costs: Costs
) -> list[Kind]:
    """Group the ranks by workload and straggler factor, lowest rank first."""
    options.check_ranks(placement.world_size)
    trainers = options.trainers(placement.world_size)
    members: dict[tuple[str | None, float], list[int]] = {}
    for node_class in placement.classes:
        name = node_class.template.workload
        if name is not None:
            _check_template(node_class.template.name, name, workloads, workload)
        for node in node_class.node_indices:
            for gpu in range(placement.gpus_per_node):
                rank = placement.rank_of(node, gpu)
                if rank >= trainers:
                    continue
                members.setdefault((name, options.stragglers.get(rank, 1.0)), []).append(rank)
    kinds = []
    for (name, factor), ranks in members.items():
        source = workload if name is None else workloads[name]
        alone = source.ranks == 1 and not source.timed
        shared = costs.shared_compute_slowdown if placement.gpus_per_node > 1 and alone else 1.0
        scaled = paces(source, options.scale_compute * factor * shared, options.scale_host, options.scale)
        split = tuple(in_graphs(each, graphs_of(source, options), costs.graph_s) for each in scaled)
        kinds.append(Kind(sorted(ranks), source, split, 0.0 if source.timed else costs.pace_spread))
    return sorted(kinds, key=lambda kind: kind.first)


def _check_template(template: str, name: str, workloads: dict[str, Workload], trained: Workload) -> None:
    place = f"node template {template!r}"
    if name not in workloads:
        raise InputError(f"names the workload {name!r}, which is not given", place=place)
    other = workloads[name]
    ours, theirs = ([(p.name, p.shape, p.dtype) for p in each.parameters] for each in (trained, other))
    if ours != theirs or trained.buffers != other.buffers:
        what = "parameters" if ours != theirs else "buffers"
        remedy = f"name one of the model that is trained, {trained.name!r}, captured on the template's GPU"
        raise InputError(f"the workload {other.name!r} has other {what}", place=place, remedy=remedy)


def _apart(kinds: list[Kind]) -> list[Kind]:
    """Return one kind a rank, at the paces of the kind it is of."""
    apart = [replace(kind, ranks=[rank]) for kind in kinds for rank in kind.ranks]
    return sorted(apart, key=lambda kind: kind.first)
