"""Ranks run together: one clock, one network, one schedule or DDP's own buckets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import simpy

from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.execute import Collectives
from ddpsim.collectives.gloo.groups import among
from ddpsim.jobs.simulated import Options
from ddpsim.network.fluid import Network
from ddpsim.operations import Operation
from ddpsim.simulation.beside import Beside
from ddpsim.simulation.costs import Costs
from ddpsim.simulation.cpu_rank import CpuRank
from ddpsim.simulation.crowd import Crowd
from ddpsim.simulation.draws import Draw
from ddpsim.simulation.gpu_rank import GpuRank
from ddpsim.simulation.inputs import InputFeed, copies_on
from ddpsim.simulation.lanes import Lanes
from ddpsim.simulation.line import send_s
from ddpsim.simulation.parcels import in_rings
from ddpsim.simulation.processor import Processor
from ddpsim.simulation.rank import Progress
from ddpsim.simulation.rendezvous import BUFFERS, Launch, Meetings, SimulatedCommunicator
from ddpsim.simulation.scheduled import Scheduled
from ddpsim.simulation.servers import Attendance, ServerLinks, Staleness
from ddpsim.simulation.setting import Setting
from ddpsim.simulation.timed_rank import TimedRank
from ddpsim.topology.graph import Placement
from ddpsim.trace.records import Iteration


@dataclass(frozen=True, slots=True)
class _Wire:
    """A wire carries what ranks launch: DDP's buckets, a schedule's messages in their lanes, module buffers.

    Attributes:
        collectives: of all ranks.
        lanes: of a schedule's groups and streams; None where DDP's buckets go.
        crowd: what collectives in flight cost each other.
        on_busy: told when a processor becomes busy or idle.
    """

    env: simpy.Environment
    costs: Costs
    collectives: Collectives
    lanes: Lanes | None
    crowd: Crowd
    on_busy: Callable[[bool], None]

    def transfer(self, launch: Launch) -> simpy.Event:
        """Carry out `launch`, whose ranks are all there, and return the event of its end."""
        return self.crowd.around(launch, self._sent(launch))

    def _sent(self, launch: Launch) -> simpy.Event:
        if launch.operation == BUFFERS:
            return self.collectives.broadcast(launch.size_bytes) & self.env.timeout(self.costs.broadcast_s)
        if self.lanes is not None:
            return self.lanes.run(launch)
        if launch.operation == Operation.ALLREDUCE:
            return self.collectives.allreduce(launch.size_bytes, launch.lane)
        return self.collectives.run(Operation(launch.operation), launch.size_bytes, launch.lane)


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

    def run(self, draws: Sequence[Draw], settings: list[Setting]) -> list[Iteration]:
        """Run the setting of each simulated rank to its end and return their records."""
        env, scheduled = simpy.Environment(), settings[0].scheduled
        wire = self._wire(env, scheduled)
        if self.options.comm == "real":
            every = settings[0].iterations
            sizes = [bucket.size_bytes for bucket in settings[0].plan(every - 1).buckets]
            wire.collectives.check_extent(sizes, every // self.options.sync_every)
        meetings = Meetings(env, len(settings), wire.transfer) if self.options.comm == "real" else None
        alone = self._alone(env, scheduled, wire.collectives)
        ranks = [
            self._rank(env, draw, setting, wire, meetings if alone is None else alone(draw.rank))
            for draw, setting in zip(draws, settings, strict=True)
        ]
        ranks[0].progress = self.progress
        env.run(env.all_of([env.process(rank.run()) for rank in ranks]))
        return [record for rank in ranks for record in rank.records]

    def _wire(self, env: simpy.Environment, scheduled: Scheduled | None) -> _Wire:
        """Return what carries the launches of all ranks."""
        rings = scheduled is not None and in_rings(scheduled.schedule)
        collectives, lanes = self._collectives(env, rings, self.placement), None
        if scheduled is not None:
            made = partial(self._collectives, env, rings)
            groups, patterns = scheduled.schedule.groups, scheduled.schedule.patterns
            lanes = Lanes.of(scheduled.lanes, groups, collectives, self.placement, made, patterns)
        steps = None if lanes is None else lanes.steps
        crowd = Crowd(env, self.costs, self.placement.world_size, collectives.estimate_s, steps)
        return _Wire(env, self.costs, collectives, lanes, crowd, _busy_ranks(collectives, self.costs))

    def _rank(
        self, env: simpy.Environment, draw: Draw, setting: Setting, wire: _Wire, meetings: Meetings | Attendance | None
    ) -> CpuRank | GpuRank:
        """Return one simulated rank, with its processor, its part in all communication and its batches."""
        collectives, lanes = wire.collectives, wire.lanes
        of_lanes = () if lanes is None else lanes.transports()
        count = self.options.process_groups if lanes is None else len(lanes.groups)
        world_size = self.placement.world_size
        beside = Beside.of(setting.costs, setting.workload, collectives.transport, world_size, of_lanes)
        processor = Processor(env, beside, wire.on_busy, self.costs.copy_slowdown)
        communicator = SimulatedCommunicator(
            env, meetings, count, collectives.streams_per_group, processor, setting.late_s
        )
        rank = make_rank(env, draw.rank, setting, processor, communicator)
        rank.feed = self._feed(env, setting, collectives.network, draw.stands_for)
        return rank

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
        if scheduled is None or not scheduled.schedule.asynchronous or self.options.comm != "real":
            return None
        servers = scheduled.schedule.sharding.servers
        latency_s = send_s(world, self.placement.world_size) if world.sends_in_line else None
        links = ServerLinks(env, self.placement, self.backend, self.calibration, servers, latency_s, self.wire_factor)
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
