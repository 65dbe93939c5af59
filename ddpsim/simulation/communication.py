"""What the ranks of a job share: one clock, one network, what carries their messages and copies their batches.

What a simulated run takes as given, beside its workload, machine and options.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import simpy

from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.execute import Collectives, find_rank_paths, make_transport, scale_transport
from ddpsim.collectives.gloo.groups import adapt_to_group
from ddpsim.collectives.routes import PlacementLinks
from ddpsim.collectives.transport import Transport
from ddpsim.jobs.simulated import Options
from ddpsim.network.fairness import Demand, LinkId, alone_s
from ddpsim.network.fluid import Network
from ddpsim.operations import Operation
from ddpsim.options.input_stage import InputStage
from ddpsim.schedules.mesh import EXPERT
from ddpsim.simulation.contention import ComputeSlowdown, ConcurrentCollectives, OnBusy, Processor, slow_messages
from ddpsim.simulation.costs import Costs
from ddpsim.simulation.graph import BUFFERS, Collective
from ddpsim.simulation.messages import runs_in_rings
from ddpsim.simulation.record import BETWEEN_NODES, ENDS, INSIDE_NODE, LATENCY
from ddpsim.simulation.run import Copy
from ddpsim.simulation.scheduling import Scheduled
from ddpsim.simulation.servers import MessageStreams, ServerLinks, Staleness, send_s
from ddpsim.simulation.setting import RankConfiguration
from ddpsim.simulation.stage_links import StageLinks
from ddpsim.topology.graph import Placement
from ddpsim.topology.link_rates import with_faster_links
from ddpsim.topology.node import NETWORK
from ddpsim.topology.paths import find_paths
from ddpsim.workload.gpus import AchievedGpu

WireFactor = Callable[[int], float]
"""Factor on the time of a collective by its bytes."""


class SharedNetwork(NamedTuple):
    """A network that several jobs are on, or several groups of a job's ranks, and whose messages these are there.

    Attributes:
        expand: whether links are those of each node, as where another job loads them, not of one that stands for all.
    """

    network: Network
    sender: Hashable
    expand: bool = True


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What a simulated run takes as given.

    Attributes:
        calibration: constants in force; None is the priors.
        wire_factor: factor on the time of a collective by its bytes; None is 1.
        compute, host: factors on device time and on host time.
        latency: factor on the time of collectives in which none of their bytes are on links.
        links, link_rate: kinds of links, as `ddpsim.topology.link_rates` names them, and the factor on their rates.
        silent: whether collectives end where they begin, as with `comm=noop`.
    """

    calibration: Calibration | None = None
    wire_factor: WireFactor | None = None
    compute: float = 1.0
    host: float = 1.0
    silent: bool = False
    latency: float = 1.0
    links: frozenset[str] = frozenset()
    link_rate: float = 1.0

    def on(self, placement: Placement) -> Placement:
        """Return `placement` with its links' rates as they are assumed."""
        return with_faster_links(placement, self.links, self.link_rate) if self.links else placement


COPIES = "copies"
"""Who sends batches: a copy engine, which the computation of no rank slows."""


def copies_on(network: Network, placement: Placement, ranks: Sequence[int], stage: InputStage, *, closed: bool) -> Copy:
    """Return what copies a batch to the GPU of each of `ranks`, all at once, over the links that messages share.

    Ranks of other nodes than the first's are alike, and load links of their own.

    Args:
        closed: whether nothing else is on the links, as the closed forms of collectives have it.
    """
    demand, capacities = copies_of(placement, ranks, stage)
    network.add(capacities)
    if closed:
        return lambda: network.env.timeout(alone_s(demand, network.capacities))
    return lambda: network.transfer(demand, COPIES)


def copies_of(placement: Placement, ranks: Sequence[int], stage: InputStage) -> tuple[Demand, dict[LinkId, float]]:
    """Return the demand of the copies of `ranks` on the first one's node, and the capacities of its links."""
    node, _, node_class = placement.node_of(ranks[0])
    template, names, wiring = node_class.template, placement.gpus(node_class), PlacementLinks(placement)
    paths = find_paths(template)
    loads: dict[LinkId, float] = {}
    capacities: dict[LinkId, float] = {}
    gpus = _list_on_node(placement, ranks, node)
    for gpu in gpus:
        for placed in wiring.at(node, paths.from_host(names[gpu])):
            loads[placed.name] = loads.get(placed.name, 0.0) + 1.0
            capacities[placed.name] = placed.link.bandwidth
    count = len(gpus)
    if stage.in_turn:
        size, loads = count * stage.copy_bytes, {link: load / count for link, load in loads.items()}
        return Demand(0.0, size, loads, rate_limit=stage.limit_Bps), capacities
    return Demand(0.0, stage.copy_bytes, loads, rate_limit=stage.limit_Bps, weight=count), capacities


def byte_copy_s(placement: Placement) -> float:
    """Return what a byte takes from page-locked memory to each GPU of a node, all at once, with no more on their links.

    Links carry as much the other way at the same time.
    """
    demand, capacities = copies_of(placement, range(placement.gpus_per_node), InputStage(copy_bytes=1, pinned=True))
    return alone_s(demand, capacities)


def _list_on_node(placement: Placement, ranks: Iterable[int], node: int) -> list[int]:
    """Return the GPUs of `node` that `ranks` run on, numbered in the node."""
    each = placement.gpus_per_node
    return [rank % each for rank in ranks if rank // each == node]


@dataclass(frozen=True, slots=True)
class Communication:
    """The communication resources that all simulated ranks share.

    Attributes:
        collectives: of all ranks.
        lanes: of a schedule's groups and streams; None where DDP's buckets go.
        concurrent: what collectives in flight cost each other.
    """

    env: simpy.Environment
    costs: Costs
    collectives: Collectives
    lanes: MessageStreams | None
    concurrent: ConcurrentCollectives

    def on_busy(self, lanes: Sequence[int] | None = None) -> OnBusy:
        """Return what is told when a rank becomes busy or idle, and slows the collectives that it is part of.

        Ranks meet for all of them, of whatever group, so that whichever is busy slows each.

        Args:
            lanes: numbers of those that the rank is part of; None is all.
        """
        every = [] if self.lanes is None else self.lanes.groups
        groups = dict.fromkeys([self.collectives, *every] if lanes is None else [every[lane] for lane in lanes])
        told = [slow_messages(each.network, self.costs, each.transport.hops, each.sender) for each in groups]

        def on_busy(busy: bool) -> None:
            for tell in told:
                tell(busy)

        return told[0] if len(told) == 1 else on_busy

    def transfer(self, collective: Collective) -> simpy.Event:
        """Carry out `collective`, whose ranks are all there, and return the event of its end."""
        size_bytes, operation = collective.size_bytes, collective.operation
        if operation == BUFFERS:
            among = self.collectives if self.lanes is None else self.lanes.groups[collective.lane]
            broadcast = among.run(Operation.BROADCAST, size_bytes)
            sent: simpy.Event = broadcast & self.env.timeout(self.costs.broadcast_s)
        elif self.lanes is not None:
            sent = self.lanes.run(collective)
        else:
            sent = self.collectives.run(Operation(operation), size_bytes, collective.lane)
        return self.concurrent.wait_for_end(collective, sent)

    def shares(self, collective: Collective) -> list[tuple[str, float]]:
        """Return what the time of a collective with nothing beside it is of, as shares that sum to 1."""
        lanes, lane = self.lanes, collective.lane
        buffers = collective.operation == BUFFERS
        transport = self.collectives.transport if lanes is None else lanes.groups[lane].transport
        size_bytes = collective.size_bytes * (1 if lanes is None or buffers else lanes.together[lane])
        demand = transport.demand(Operation.BROADCAST if buffers else Operation(collective.operation), size_bytes)
        latency_s, whole_s = demand.latency_s + demand.stall_s, alone_s(demand, transport.capacities)
        if whole_s <= 0 or latency_s >= whole_s:
            return [(LATENCY, 1.0)]
        full = {str(link): load / transport.capacities[link] for link, load in demand.loads.items()}
        most = max(full, key=lambda link: full[link], default=None)
        # NCCL's rate is that of its slowest hop; over gloo threads that add and step may be slower than any link.
        if most is None or (transport.backend == "gloo" and demand.limit < demand.alone_rate(transport.capacities)):
            by = ENDS
        else:
            by = BETWEEN_NODES if NETWORK in most else INSIDE_NODE
        return [(LATENCY, latency_s / whole_s), (by, 1 - latency_s / whole_s)]


@dataclass(slots=True)
class JobResources:
    """What the ranks of one job compute and communicate on.

    Attributes:
        gpu: that the first rank computes on; None as in `RankConfiguration`.
        wire_factor, latency: as those of `Assumptions`.
        staleness: how stale the gradients were that servers took in; None where no rank goes on without the others.
        transports: that were made, of all ranks and of groups of them, by their ranks and conditions.
    """

    placement: Placement
    options: Options
    calibration: Calibration | None
    backend: str
    costs: Costs
    gpu: AchievedGpu | None
    wire_factor: Callable[[int], float] | None
    latency: float = 1.0
    staleness: Staleness | None = None
    transports: dict[Hashable, Transport] = field(default_factory=dict, repr=False)

    def with_assumptions(self, assumed: Assumptions, costs: Costs) -> JobResources:
        """Return what the ranks compute and communicate on under other assumptions, with those costs of DDP.

        Transports that stay are not made again.
        """
        return replace(
            self,
            placement=assumed.on(self.placement),
            options=replace(self.options, comm="noop") if assumed.silent else self.options,
            calibration=assumed.calibration,
            costs=costs,
            wire_factor=assumed.wire_factor,
            latency=assumed.latency,
            transports=self.transports if self.keeps_transports(assumed) else {},
        )

    def keeps_transports(self, assumed: Assumptions) -> bool:
        """Whether a collective takes the same constants of its transport, on links of the same rates."""
        mine, other = self.calibration, assumed.calibration
        if assumed.links:
            return False
        return mine is other or _transport_constants(mine, self.backend) == _transport_constants(other, self.backend)

    def communication(
        self,
        env: simpy.Environment,
        scheduled: Scheduled | None,
        on: SharedNetwork | None = None,
    ) -> Communication:
        """Return what carries the collectives of all ranks.

        Args:
            on: a network that another job is on too; None is the job's own.
        """
        rings = scheduled is not None and runs_in_rings(scheduled.schedule)
        collectives, lanes = self._collectives(env, rings, self.placement, on=on), None
        if scheduled is not None and self.options.staged:
            lanes = self._stage_streams(env, rings, scheduled)
        elif scheduled is not None:
            groups, patterns = scheduled.schedule.groups, scheduled.schedule.patterns
            # Experts' gradients go over every so-manieth rank while all others' go over all, on the same links.
            among = collectives.network if EXPERT in groups else None
            made = partial(self._collectives_of_group, env, rings, among)
            lanes = MessageStreams.of(scheduled.lanes, groups, collectives, self.placement, made, patterns)
        steps = None if lanes is None else lanes.steps
        concurrent = ConcurrentCollectives(env, self.costs, self.placement.world_size, collectives.estimate_s, steps)
        return Communication(env, self.costs, collectives, lanes, concurrent)

    def _stage_streams(self, env: simpy.Environment, rings: bool, scheduled: Scheduled) -> MessageStreams:
        """Return what carries the messages of the ranks of a pipeline."""
        given, fidelity = self.options.pipeline, self.options.fidelity
        assert given is not None

        def make(placement: Placement, share: float, network: Network, sender: Hashable) -> Collectives:
            on = SharedNetwork(network, sender, expand=False)
            return self._collectives(env, rings, placement, None, share, on=on)

        def over(transport: Transport, network: Network, sender: Hashable) -> Collectives:
            own = scale_transport(transport, self.wire_factor, self.latency)
            return Collectives.over(own, env, fidelity=fidelity, network=network, sender=sender)

        ways = find_rank_paths(self.placement, self.backend, self.calibration)
        links = StageLinks(env, self.placement, given, self.options.tensor_parallel, ways, make, over)
        return links.streams(scheduled.lanes)

    def processor(self, shared: Communication, setting: RankConfiguration, costs: Costs, on_busy: OnBusy) -> Processor:
        """Return what a rank computes on, which tells `on_busy` when it does."""
        lanes = () if shared.lanes is None else shared.lanes.transports()
        ranks = self.placement.world_size
        share, transport = setting.workload.arithmetic_share, shared.collectives.transport
        slowdown = ComputeSlowdown.of(costs, share, setting.capacity, transport, ranks, lanes)
        return Processor(shared.env, slowdown, on_busy, self.costs.copy_slowdown)

    def copy(
        self, env: simpy.Environment, setting: RankConfiguration, network: Network, ranks: Sequence[int]
    ) -> Copy | None:
        """Return what copies a batch to the device of a simulated rank; on a CPU nothing is copied."""
        stage = setting.input_stage
        if stage is None:
            return None
        if setting.execution.one_thread or stage.copy_bytes == 0:
            return lambda: env.timeout(0.0)
        together = range(self.placement.world_size) if stage.in_turn else ranks
        return copies_on(network, self.placement, together, stage, closed=self.options.fidelity == "closed")

    def channels(self, env: simpy.Environment, scheduled: Scheduled | None, world: Collectives) -> ServerLinks | None:
        """Return what sends each rank's messages where ranks do not meet; None where they do."""
        if scheduled is None or not scheduled.schedule.asynchronous or self.options.comm != "real":
            return None
        hosts = scheduled.schedule.sharding.hosts
        latency_s = send_s(world, self.placement.world_size) if world.sends_in_line else None
        buckets = [
            [message.parameters for message in scheduled.schedule if (message.group, message.stream) == lane]
            for lane in scheduled.lanes
        ]
        ways = find_rank_paths(self.placement, self.backend, self.calibration)
        links = ServerLinks(
            env, self.placement, ways, self.costs, hosts, buckets, latency_s, self.wire_factor, self.latency
        )
        self.staleness = links.staleness
        return links

    def _collectives_of_group(
        self,
        env: simpy.Environment,
        rings: bool,
        network: Network | None,
        placement: Placement,
        pattern: str | None,
        share: float,
    ) -> Collectives:
        """Return the collectives of groups of ranks, on `network` where that is on links of all ranks' too."""
        on = None
        if network is not None:
            on = SharedNetwork(network, (placement.nodes, placement.gpus_per_node, share), expand=False)
        return self._collectives(env, rings, placement, pattern, share, on=on)

    def _collectives(
        self,
        env: simpy.Environment,
        rings: bool,
        placement: Placement,
        pattern: str | None = None,
        share: float = 1.0,
        *,
        on: SharedNetwork | None = None,
    ) -> Collectives:
        options = replace(self.options.collective, rings=rings, expand=on is not None and on.expand)
        options = options if pattern is None else replace(options, algorithm=pattern)
        calibration = self.calibration
        if calibration is not None and self.backend == "gloo":
            calibration = adapt_to_group(calibration, self.placement.world_size, placement.world_size)
        key = (placement.nodes, placement.gpus_per_node, placement.topology.visible_devices, options)
        if key not in self.transports:
            self.transports[key] = make_transport(placement, self.backend, calibration, options)
        factor = self.wire_factor if share == 1 else _times(share, self.wire_factor)
        transport = scale_transport(self.transports[key], factor, self.latency)
        network, sender = (None, None) if on is None else on[:2]
        return Collectives.over(transport, env, fidelity=options.fidelity, network=network, sender=sender)


def _times(share: float, factor: Callable[[int], float] | None) -> Callable[[int], float]:
    """Return `factor` times a share, whatever the size."""
    return lambda size_bytes: share * (1.0 if factor is None else factor(size_bytes))


def _transport_constants(calibration: Calibration | None, backend: str) -> tuple[dict[str, float], object]:
    known = Calibration.priors(backend).constants
    if calibration is not None:
        known = {**known, **calibration.constants}
    values = {name: each.value for name, each in known.items() if ".ddp." not in name}
    return values, () if calibration is None else calibration.curves
