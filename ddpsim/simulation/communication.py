"""What the ranks of a job share: one clock, one network, what carries their messages and copies their batches.

Start at `JobResources.communication`, which makes a `Communication`: it carries each collective (`transfer`) and says
what that costs the computation beside it (`slowdown`) and what the computation costs it (`on_busy`). `Assumptions` are
the factors under which a run is made, other than 1 for the ends of bands.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import simpy

from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.conditions import CollectiveOptions
from ddpsim.collectives.copies import CopyDemand, copies_of
from ddpsim.collectives.execute import Collectives, find_rank_paths, make_transport, scale_transport
from ddpsim.collectives.network.fairness import alone_s
from ddpsim.collectives.network.fluid import Network
from ddpsim.collectives.transport import Transport
from ddpsim.common.operation import Operation
from ddpsim.common.options.input_stage import InputStage
from ddpsim.schedules.copied import runs_in_rings
from ddpsim.schedules.mesh import DATA, EXPERT
from ddpsim.schedules.message import WORLD
from ddpsim.simulation.contention import ComputeSlowdown, ConcurrentCollectives, OnBusy, Share, share_of, slow_messages
from ddpsim.simulation.ddp_costs import Costs
from ddpsim.simulation.graph import (
    BATCH,
    BETWEEN_NODES,
    BUFFERS,
    ENDS,
    INSIDE_NODE,
    LATENCY,
    Collective,
    CollectiveKey,
    Copy,
)
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.simulation.lanes import (
    LaneGroup,
    SharedNetwork,
    StreamQueue,
    part_of,
    send_s,
    share_of_together,
)
from ddpsim.simulation.parameter_servers import ServerLinks
from ddpsim.simulation.rank_config import Scheduled
from ddpsim.simulation.stage_links import StageLinks
from ddpsim.topology.graph import Placement
from ddpsim.topology.link_rates import with_faster_links
from ddpsim.topology.node import NETWORK
from ddpsim.workload.gpus import AchievedGpu

WireFactor = Callable[[int], float]
"""Factor on the time of a collective by its bytes."""


@dataclass(frozen=True, slots=True)
class Assumptions:
    """The constants of a simulated run, and factors on parts of its time, by which bands and sensitivities are had.

    Attributes:
        calibration: constants in force; None is the priors.
        wire_factor: factor on the time of a collective by its bytes; None is 1.
        compute, host: factors on device time and on host time.
        latency: factor on the time of collectives in which none of their bytes are on links.
        links, link_rate: kinds of links, as `ddpsim.topology.link_rates` names them, and the factor on their rates.
        silent: whether collectives end where they begin, as with `comm=noop`.
        input: factor on what loading a batch takes, and on the host's own part of its copy; 0 is no input stage.
        excess: factor on what the ranks of `stragglers` take beyond the others.
    """

    calibration: Calibration | None = None
    wire_factor: WireFactor | None = None
    compute: float = 1.0
    host: float = 1.0
    silent: bool = False
    latency: float = 1.0
    links: frozenset[str] = frozenset()
    link_rate: float = 1.0
    input: float = 1.0
    excess: float = 1.0

    def on(self, placement: Placement) -> Placement:
        """Return `placement` with its links' rates as they are assumed."""
        return with_faster_links(placement, self.links, self.link_rate) if self.links else placement

    def scale(self, options: Options) -> Options:
        """Return `options` with the pace of devices, and whether ranks communicate, as they are assumed."""
        if (self.compute, self.silent, self.excess) == (1, False, 1):
            return options
        return replace(
            options,
            comm="noop" if self.silent else options.comm,
            scale_compute=options.scale_compute * self.compute,
            stragglers={rank: self.straggler(factor) for rank, factor in options.stragglers.items()},
            straggling=options.straggling if self.excess else None,
        )

    def straggler(self, factor: float) -> float:
        """Return the factor on a rank's computing time that is `factor` as asked for."""
        return 1 + (factor - 1) * self.excess


_NO_SHARE = 1e-9
"""What is less is left over of products that should be none."""

COPIES = "copies"
"""Who sends batches, and what passes between devices: copy engines, which the computation of no rank slows."""


@dataclass(slots=True, eq=False)
class Communication:
    """The communication resources that all simulated ranks share.

    All groups of a name carry out their message at once. Those of consecutive ranks are taken to share no link. Those
    of one place in each shard share their nodes' NICs: together they load them as one allreduce does that has all their
    messages, so that it is run in their place, among all GPUs of the nodes they are on. Groups of different names do
    not slow each other, for shards lie in a node as a rule, replicas across nodes; beside expert parallelism they do.

    Attributes:
        world: the group of all ranks.
        lanes: of a schedule's groups and streams, or of DDP's process groups; of ranks of several devices one each, for
            each has communicators of its own, on links that all share.
        apart: what carries each rank's messages where ranks do not meet for them; None where they do.
    """

    env: simpy.Environment
    costs: Costs
    world: LaneGroup
    lanes: Sequence[LaneGroup]
    apart: ServerLinks | None = None
    _concurrent: ConcurrentCollectives = field(init=False)

    def __post_init__(self) -> None:
        self._concurrent = ConcurrentCollectives(self.env, self.costs, self.world.ranks, self.alone_s, self.steps)

    @property
    def collectives(self) -> Collectives:
        """Those of all ranks."""
        return self.world.collectives

    def steps(self, collective: Collective) -> int:
        """Return the steps of a collective; a broadcast of buffers is a tree, and a send in line one step."""
        if collective.operation == BUFFERS:
            return (self.world.ranks - 1).bit_length()
        group = self.lanes[collective.lane]
        return 1 if group.line is not None else collective.carried_as.steps(group.ranks)

    def alone_s(self, collective: Collective) -> float:
        """Return what a collective of its bytes among all ranks takes with nothing in flight."""
        return self.collectives.estimate_s(collective.size_bytes, collective.carried_as)

    def slowdown(self, costs: Costs, gpu: AchievedGpu | None, arithmetic_share: float) -> ComputeSlowdown:
        """Return what collectives cost the computation of a rank; what no schedule has counts as allreduces.

        Args:
            gpu: that computes; None as in `RankConfiguration`.
            arithmetic_share: of the computation's time, that multiprocessors bound.
        """

        known: dict[CollectiveKey, Share] = {}

        def taken(collective: Collective) -> Share:
            if (key := collective.key) in known:
                return known[key]
            buffers = collective.operation == BUFFERS
            group = self.lanes[collective.lane]
            operation = Operation.ALLREDUCE if buffers else collective.carried_as
            transport, size_bytes = group.collectives.transport, collective.size_bytes
            known[key] = share_of(costs, gpu, transport, group.ranks, size_bytes, operation)
            return known[key]

        return ComputeSlowdown.of(costs, arithmetic_share, taken)

    def on_busy(self, lanes: Sequence[int] | None = None) -> OnBusy:
        """Return a callback for when a rank becomes busy or idle; it slows the collectives that the rank is part of.

        Ranks meet for all of them, of whatever group, so that whichever is busy slows each.

        Args:
            lanes: numbers of those that the rank is part of, or of its devices one; None is all.
        """
        among = [self.world, *self.lanes] if lanes is None else [self.lanes[lane] for lane in lanes]
        groups = dict.fromkeys(each.collectives for each in among)
        listeners = [slow_messages(each.network, self.costs, each.transport.hops, each.sender) for each in groups]

        def on_busy(busy: bool) -> None:
            for notify in listeners:
                notify(busy)

        return listeners[0] if len(listeners) == 1 else on_busy

    def transfer(self, collective: Collective) -> simpy.Event:
        """Carry out `collective`, whose ranks are all there, and return the event of its end."""
        sent = self.lanes[collective.lane].start(collective)
        if collective.operation == BUFFERS:
            sent = sent & self.env.timeout(self.costs.broadcast_s)
        return self._concurrent.wait_for_end(collective, sent)

    def shares(self, collective: Collective) -> list[tuple[str, float]]:
        """Return what the time of a collective with nothing beside it is of, as shares that sum to 1."""
        group = self.lanes[collective.lane]
        transport, demand = group.collectives.transport, group.demand(collective)
        latency_s, whole_s = demand.latency_s + demand.stall_s, alone_s(demand, transport.capacities)
        if whole_s <= 0 or latency_s >= whole_s:
            return [(LATENCY, 1.0)]
        full = {str(link): load / transport.capacities[link] for link, load in demand.loads.items()}
        most = max(full, key=lambda link: full[link], default=None)
        moving, threads = 1 - latency_s / whole_s, 1.0 if most is None else transport.threads_share(demand)
        parts = [(LATENCY, latency_s / whole_s), (ENDS, threads * moving)]
        if most is not None:
            parts.append((BETWEEN_NODES if NETWORK in most else INSIDE_NODE, (1 - threads) * moving))
        return [(cause, share) for cause, share in parts if share > _NO_SHARE]


@dataclass(slots=True)
class JobResources:
    """What the ranks of one job compute and communicate on.

    Attributes:
        gpu: that the first rank computes on; None as in `RankConfiguration`.
        wire_factor, latency: as those of `Assumptions`.
        transports: that were made, of all ranks and of groups of them, by their ranks and conditions.
    """

    placement: Placement
    options: Options
    calibration: Calibration | None
    backend: str
    costs: Costs
    gpu: AchievedGpu | None
    wire_factor: WireFactor | None
    latency: float = 1.0
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
        scheduled: Scheduled,
        on: SharedNetwork | None = None,
    ) -> Communication:
        """Return what carries the collectives of all ranks.

        Args:
            on: a network that another job is on too, so that links are those of each node; None is the job's own, where
                one node's stand for those of all.
        """
        # One node stands for all that are alike, but where two jobs share the fabric: links are then each node's own.
        rings = runs_in_rings(scheduled.schedule)
        options = replace(self.options.collective, rings=rings, expand=False)
        expanded = options if on is None else replace(options, expand=True)
        world = LaneGroup(self._collectives(env, expanded, self.placement, on), self.placement.world_size)
        if scheduled.schedule.place is not None:
            ways = find_rank_paths(self.placement, self.backend, self.calibration)
            make, over = partial(self._collectives, env, options), partial(self._over, env)
            links = StageLinks(env, self.placement, self.options.cut, self.options.tensor_parallel, ways, make, over)
            return Communication(env, self.costs, world, links.lanes(scheduled.lanes))
        # A group that is all ranks, by no pattern of its own, sends as the world does: one transport, one network.
        lane_groups, patterns, groups = {WORLD: world}, scheduled.schedule.patterns, scheduled.schedule.groups
        # Experts' gradients go over every so-manieth rank while all others' go over all, on the same links.
        network = world.collectives.network if EXPERT in groups else None
        for name, ranks in groups.items():
            part, together = part_of(self.placement, name, ranks)
            share = share_of_together(ranks, part) if name == DATA else 1.0
            collectives = world.collectives
            if part is not self.placement or name in patterns or share != 1:
                own = replace(options, algorithm=patterns[name]) if name in patterns else options
                shared_network = None
                if network is not None:
                    shared_network = SharedNetwork(network, (part.nodes, part.gpus_per_node, share))
                collectives = self._collectives(env, own, part, shared_network, share)
            lane_groups[name] = LaneGroup(collectives, ranks, together)
        lanes = [lane_groups[group] for group, _ in scheduled.lanes]
        # The other devices of each rank: a communicator each, from the same nodes by other GPUs, on the same network.
        for device in range(1, self.placement.devices):
            on = SharedNetwork(world.collectives.network, device)
            of_device = self._collectives(env, options, self.placement.of_device(device), on)
            lanes[device] = LaneGroup(of_device, world.ranks)
        # Over gloo a pattern's messages are sends of one thread, one behind the other.
        if world.collectives.sends_in_line:
            latency_s = send_s(world.collectives, world.ranks)
            for number, (group, _) in enumerate(scheduled.lanes):
                if group in patterns:
                    line = StreamQueue(lane_groups[group].collectives.network, latency_s)
                    lanes[number] = replace(lane_groups[group], line=line)
        meet = scheduled.schedule.ranks_meet or self.options.comm != "real"
        apart = None if meet else self._apart(env, scheduled, world.collectives)
        return Communication(env, self.costs, world, lanes, apart)

    def copy(self, stage: InputStage | None, network: Network, ranks: Sequence[int]) -> Callable[[Copy], simpy.Event]:
        """Return what carries out a copy of each of `ranks`: batches as `stage` says, between devices all at once.

        Copies are over the links that messages share; by closed forms as if there were none.
        """
        placement, known = self.placement, dict[Copy, CopyDemand]()
        if stage is not None and stage.copy_bytes > 0:
            together = range(placement.world_size) if stage.in_turn else ranks
            size_bytes, rate_limit = stage.copy_bytes, stage.limit_Bps
            known[BATCH] = copies_of(placement, together, size_bytes, rate_limit=rate_limit, in_turn=stage.in_turn)

        def copy(copied: Copy) -> simpy.Event:
            if copied.source is None and copied not in known:
                return network.env.timeout(0.0)
            if copied not in known:
                known[copied] = copies_of(placement, ranks, copied.size_bytes, (copied.source, copied.target))
            demand, capacities = known[copied]
            if self.options.fidelity == "closed":
                return network.env.timeout(alone_s(demand, capacities))
            network.add(capacities)
            return network.transfer(demand, COPIES)

        return copy

    def _apart(self, env: simpy.Environment, scheduled: Scheduled, world: Collectives) -> ServerLinks:
        """Return what sends each rank's messages where ranks do not meet."""
        schedule = scheduled.schedule
        latency_s = send_s(world, self.placement.world_size) if world.sends_in_line else None
        buckets = [
            [message.parameters for message in schedule if (message.group, message.stream) == lane]
            for lane in scheduled.lanes
        ]
        ways = find_rank_paths(self.placement, self.backend, self.calibration)
        return ServerLinks(env, ways, schedule.sharding.hosts, buckets, latency_s, self.wire_factor, self.latency)

    def _collectives(
        self,
        env: simpy.Environment,
        options: CollectiveOptions,
        placement: Placement,
        on: SharedNetwork | None,
        share: float = 1.0,
    ) -> Collectives:
        """Return the collectives of a part of the ranks, each of which takes some share of its time."""
        calibration = self.calibration
        if calibration is not None and self.backend == "gloo":
            from ddpsim.collectives.gloo.transport import adapt_to_group

            calibration = adapt_to_group(calibration, self.placement.world_size, placement.world_size)
        key = (placement.nodes, placement.gpus_per_node, placement.device, placement.topology.visible_devices, options)
        if key not in self.transports:
            self.transports[key] = make_transport(placement, self.backend, calibration, options)
        return self._over(env, self.transports[key], on, share)

    def _over(
        self, env: simpy.Environment, transport: Transport, on: SharedNetwork | None, share: float = 1.0
    ) -> Collectives:
        """Return the collectives of a transport under the job's conditions."""
        wire = self.wire_factor
        factor = wire if share == 1 else lambda size_bytes: share * (1.0 if wire is None else wire(size_bytes))
        own = scale_transport(transport, factor, self.latency)
        network, sender = (None, None) if on is None else on
        return Collectives.over(own, env, fidelity=self.options.fidelity, network=network, sender=sender)


def _transport_constants(calibration: Calibration | None, backend: str) -> tuple[dict[str, float], object]:
    known = Calibration.priors(backend).constants
    if calibration is not None:
        known = {**known, **calibration.constants}
    values = {name: each.value for name, each in known.items() if ".ddp." not in name}
    return values, () if calibration is None else calibration.curves
