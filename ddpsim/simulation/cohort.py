"""Ranks run together: one clock, one network, one schedule or DDP's own buckets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import simpy

from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.execute import Collectives, make_transport
from ddpsim.collectives.gloo.groups import among
from ddpsim.jobs.simulated import Options
from ddpsim.network.fluid import Network
from ddpsim.operations import Operation
from ddpsim.schedules.named import servers_named
from ddpsim.simulation.beside import Beside
from ddpsim.simulation.costs import Costs
from ddpsim.simulation.cpu_rank import CpuRank
from ddpsim.simulation.crowd import Crowd
from ddpsim.simulation.draws import Draw
from ddpsim.simulation.gpu_rank import GpuRank
from ddpsim.simulation.inputs import InputFeed, copies_on
from ddpsim.simulation.lanes import Lanes
from ddpsim.simulation.line import send_s
from ddpsim.simulation.one_process import check_one_process, in_one_process
from ddpsim.simulation.processor import Processor
from ddpsim.simulation.rank import Progress, Setting
from ddpsim.simulation.rendezvous import BUFFERS, Launch, Meetings, SimulatedCommunicator
from ddpsim.simulation.scheduled import Scheduled, in_rings, setup_of
from ddpsim.simulation.servers import Attendance, ServerLinks, Staleness
from ddpsim.simulation.timed_rank import TimedRank
from ddpsim.topology.graph import Placement
from ddpsim.trace.records import Iteration

SEGMENT_ALIGNMENT = 16
"""Bytes at multiples of which messages are cut, as NCCL aligns what it copies fastest."""


@dataclass(slots=True)
class Cohort:
    """A cohort is the simulated ranks of a job, and the network and messages by which they meet.

    Attributes:
        staleness: how stale the gradients were that servers took in; None where no rank goes on without the others.
    """

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

        steps = None if lanes is None else lanes.steps
        crowd = Crowd(env, self.costs, self.placement.world_size, collectives.estimate_s, steps)

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
        alone = self._alone(env, scheduled, collectives)
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
            rank = make_rank(env, draw.rank, setting, processor, communicator)
            rank.feed = self._feed(env, setting, collectives.network, draw.stands_for)
            ranks.append(rank)
        ranks[0].progress = self.progress
        env.run(env.all_of([env.process(rank.run()) for rank in ranks]))
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

    def _alone(
        self, env: simpy.Environment, scheduled: Scheduled | None, world: Collectives
    ) -> Callable[[int], Attendance] | None:
        """Return what sends each rank's messages where ranks do not meet; None where they do."""
        asked = servers_named(self.options.scheme)
        if scheduled is None or asked is None or not asked.asynchronous or self.options.comm != "real":
            return None
        latency_s = send_s(world, self.placement.world_size) if world.sends_in_line else None
        links = ServerLinks(env, self.placement, self.backend, self.calibration, asked.servers, latency_s)
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
        calibration = self.calibration
        if calibration is not None and self.backend == "gloo":
            calibration = among(calibration, self.placement.world_size, placement.world_size)
        return Collectives(
            env,
            placement,
            backend=self.backend,
            calibration=calibration,
            options=options if pattern is None else replace(options, algorithm=pattern),
            factor=self.wire_factor,
        )


def make_rank(
    env: simpy.Environment, number: int, setting: Setting, processor: Processor, communicator: SimulatedCommunicator
) -> CpuRank | GpuRank:
    """Return the rank that runs `setting`, of the kind that its workload asks for."""
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
