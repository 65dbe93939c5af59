"""Allreduce patterns that no library picks by itself, on the same links with the same constants: baselines to compare.

Each is a schedule of `schedules.py` or `level_schedules.py`, rank by rank on the expanded cluster, over the backend's
ways between ranks (`transport.py`). Its rate is what its own steps reach with no latency; its latency is that of its
longest chain of steps.

Read `PatternTransport` first; `_SCHEDULES` has the patterns by name.

`pack_trees` packs spanning trees into a graph of links, as many as fit, along which Blink broadcasts and sums. Source:
Wang et al., "Blink: Fast and Generic Collectives for Distributed ML" (2020). As many trees of unit links fit, from one
root to all, as links must be cut to part the root from any other (Edmonds, 1973); they are found one by one, each link
taken only where the rest still fits (Lovász, 1976).
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from ddpsim.collectives import level_schedules, schedules
from ddpsim.collectives.level_schedules import level_sizes
from ddpsim.collectives.network.fairness import Demand, LinkId
from ddpsim.collectives.routes import total_by_key
from ddpsim.collectives.schedules import ChannelSchedule, Connection, Steps, TransferSchedule
from ddpsim.collectives.servers import parameter_server, places_named, push_and_pull
from ddpsim.collectives.transport import AlgorithmChoice, RankPaths, TransportOverPaths
from ddpsim.collectives.trees import double_binary_tree
from ddpsim.common.errors import InputError, TopologyError
from ddpsim.common.operation import Operation
from ddpsim.common.strict import parse_whole_number
from ddpsim.topology.graph import Placement
from ddpsim.topology.node import GPU_LINKS

Links = Mapping[tuple[int, int], int]
"""Parallel links from one vertex to another."""


def pack_trees(vertices: int, links: Links) -> tuple[int, list[list[int | None]]]:
    """Return the root from which most trees fit, and the parent of each vertex in each tree.

    >>> pack_trees(2, {(0, 1): 2, (1, 0): 2})
    (0, [[None, 0], [None, 0]])
    """
    # Edmonds' theorem says how many trees fit without finding one. Each is then built greedily: a link is taken only
    # where the theorem says that the others still fit without it, so that no choice has ever to be taken back.
    fits = [_count_trees(vertices, links, root) for root in range(vertices)]
    root = max(range(vertices), key=lambda each: (fits[each], -each))
    left = dict(links)
    return root, [_tree(vertices, left, root, count) for count in range(fits[root] - 1, -1, -1)]


def _count_trees(vertices: int, links: Links, root: int) -> int:
    """Return how many trees from `root` fit: the least flow from it to any other vertex."""
    return min((_flow(vertices, links, root, target) for target in range(vertices) if target != root), default=0)


def _tree(vertices: int, left: dict[tuple[int, int], int], root: int, others: int) -> list[int | None]:
    """Take a tree out of `left` such that `others` still fit beside it."""
    parents: list[int | None] = [None] * vertices
    inside = [root]
    while len(inside) < vertices:
        source, target = next(
            (source, target)
            for source in inside
            for target in range(vertices)
            if target not in inside
            and left.get((source, target), 0)
            and _fits_without(vertices, left, (source, target), root, others)
        )
        left[source, target] -= 1
        parents[target] = source
        inside.append(target)
    return parents


def _fits_without(
    vertices: int, left: dict[tuple[int, int], int], link: tuple[int, int], root: int, others: int
) -> bool:
    """Whether `others` trees still fit without one of the links between two vertices."""
    if others == 0:
        return True
    return _count_trees(vertices, {**left, link: left[link] - 1}, root) >= others


def _flow(vertices: int, links: Links, source: int, target: int) -> int:
    """Return the most that flows, by augmenting along shortest ways (Edmonds and Karp, 1972)."""
    left = dict(links)
    total = 0
    while (way := _find_way(vertices, left, source, target)) is not None:
        for ends in way:
            # Taken, and offered backwards: a later way may undo it.
            left[ends] -= 1
            left[ends[1], ends[0]] = left.get((ends[1], ends[0]), 0) + 1
        total += 1
    return total


def _find_way(vertices: int, left: Links, source: int, target: int) -> Sequence[tuple[int, int]] | None:
    before: dict[int, int] = {source: source}
    frontier = deque([source])
    while frontier and target not in before:
        here = frontier.popleft()
        for there in range(vertices):
            if there not in before and left.get((here, there), 0) > 0:
                before[there] = here
                frontier.append(there)
    if target not in before:
        return None
    way, here = [], target
    while here != source:
        way.append((before[here], here))
        here = before[here]
    return way


def _two_level(placement: Placement) -> TransferSchedule:
    _check_levels(placement, "two-level")
    return level_schedules.decomposed((placement.gpus_per_node, placement.nodes))


def _two_level_tree(placement: Placement) -> TransferSchedule:
    _check_levels(placement, "two-level-tree")
    pair = double_binary_tree(placement.nodes)
    return level_schedules.two_level_tree([tree.parents for tree in pair], placement.gpus_per_node)


def _check_levels(placement: Placement, name: str) -> None:
    if placement.nodes == 1:
        raise TopologyError(f"{name} on one node", place="algorithm", remedy="use ring, or several `nodes`")


def _parse_levels(placement: Placement, text: str) -> TransferSchedule:
    """Return the schedule of levels as a user writes them, the innermost first: `4x2x8`.

    Raises:
        TopologyError: what is no sizes, or sizes whose product is not all ranks.
    """
    sizes = [parse_whole_number(size) or 0 for size in text.split("x")]
    if math.prod(sizes) != placement.world_size:
        levels = "x".join(map(str, level_sizes(placement)))
        what = f"levels of {text!r} do not make {placement.world_size} ranks"
        raise TopologyError(what, place="algorithm", remedy=f"the network's own are blueconnect:{levels}")
    return level_schedules.decomposed([size for size in sizes if size > 1] or [1])


def _blink(placement: Placement) -> TransferSchedule:
    """Trees over the NVLinks between GPUs; where none joins them directly, each GPU is the root of a part of its own.

    Raises:
        TopologyError: nodes of several kinds, or several nodes of GPUs that NVLink does not join directly.
    """
    nodes, per_node = placement.nodes, placement.gpus_per_node
    if len(placement.classes) > 1:
        raise TopologyError("blink on nodes of several kinds", place="algorithm", remedy="use nodes of one kind")
    gpus = placement.gpus(placement.classes[0])
    places = {gpu: number for number, gpu in enumerate(gpus)}
    links = Counter[tuple[int, int]]()
    for link in placement.classes[0].template.links:
        if link.kind in GPU_LINKS and link.source in places and link.target in places:
            links[places[link.source], places[link.target]] += link.count
    if per_node == 1:
        return level_schedules.build_along_trees(nodes, 1, 0, [[None]], nodes)
    root, trees = pack_trees(per_node, links)
    if trees:
        return level_schedules.build_along_trees(nodes, per_node, root, trees, math.lcm(_PIECES, nodes))
    if nodes > 1:
        what, remedy = "blink on several nodes without NVLinks from GPU to GPU", "use one node, or two-level"
        raise TopologyError(what, place="algorithm", remedy=remedy)
    return parameter_server(per_node, range(per_node))


_PIECES = 8
"""Into which each tree's share is cut, as for trees across nodes: more fill the pipe, and cost small messages."""

_SCHEDULES: Mapping[str, Callable[[Placement], TransferSchedule]] = {
    "two-level": _two_level,
    "two-level-tree": _two_level_tree,
    "halving-doubling": lambda placement: schedules.halving_doubling(placement.world_size),
    "gather-broadcast": lambda placement: parameter_server(placement.world_size, [0]),
    "parameter-server": lambda at: parameter_server(at.world_size, range(0, at.world_size, at.gpus_per_node)),
    "blueconnect": lambda placement: level_schedules.decomposed(level_sizes(placement)),
    "blink": _blink,
}
PATTERNS = tuple(_SCHEDULES)
"""Names for `algorithm`. Two levels have a ring or a double binary tree across nodes. `blueconnect` has a ring for each
of the network's levels, or of those behind a colon, `blink` trees packed into the NVLinks. A parameter server holds 1/n
of the message beside the first rank of each node; `parameter-server:N` is the last N ranks, which hold 1/N each, and
what stands behind the colon otherwise is `ddpsim.collectives.servers.ServerPlaces`."""


def refuse_unknown_algorithm(library: str, algorithm: str, own: Collection[str]) -> None:
    """Refuse an algorithm that is neither `auto` nor one of the library's own; patterns are carried out before this.

    Raises:
        InputError: such an algorithm; the remedy names those of the library and the patterns.
    """
    if algorithm not in ("auto", *own):
        known = f"use {', '.join(('auto', *own, *PATTERNS[:-1]))} or {PATTERNS[-1]}"
        raise InputError(f"{library} has no algorithm {algorithm!r}", place="algorithm", remedy=known)


def is_pattern(algorithm: str) -> bool:
    """Whether `algorithm` names one of `PATTERNS`, or servers of their own."""
    return algorithm in PATTERNS or algorithm.startswith("blueconnect:") or places_named(algorithm) is not None


def _schedule_of(placement: Placement, algorithm: str) -> TransferSchedule:
    if (places := places_named(algorithm)) is not None:
        return push_and_pull(placement.world_size, placement.gpus_per_node, places)
    name, _, levels = algorithm.partition(":")
    return _parse_levels(placement, levels) if levels else _SCHEDULES[name](placement)


_MOST_RANKS = 256
"""Ranks that a schedule is expanded for at most; chosen by hand: two transfers for each pair of 256 are 130,000."""
_WINDOW = 8
"""Pieces under way on one connection, as many as NCCL's buffers have slots (NCCL_STEPS)."""
_PROBE_BYTES = 1 << 30
"""The message by which a schedule's rate is found, so large that latency is nothing beside it."""


class PatternTransport(TransportOverPaths):
    """Predicts an allreduce that follows one schedule on a placement.

    Args:
        ways: of the backend, between any two ranks.
        algorithm: one of `PATTERNS`, or the name of `schedule`.
        schedule: of a library's own; that of the pattern where None.

    Raises:
        TopologyError: more ranks than are expanded, or two-level on one node.
    """

    def __init__(
        self, placement: Placement, ways: RankPaths, algorithm: str, schedule: TransferSchedule | None = None
    ) -> None:
        ranks = placement.world_size
        if ranks > _MOST_RANKS:
            raise TopologyError(f"{algorithm} on {ranks} ranks", place="algorithm", remedy=f"{_MOST_RANKS} at most")
        super().__init__(ways)
        self._algorithm = algorithm
        pattern = schedule if schedule is not None or ranks == 1 else _schedule_of(placement, algorithm)
        self._schedule = TransferSchedule(1, 1, ()) if pattern is None or ranks == 1 else pattern
        self._connections = {
            pair: ways.connection(*pair)
            for pair in dict.fromkeys((t.source, t.target) for t in self._schedule.transfers)
        }

    def choice(self, size_bytes: int, operation: Operation = Operation.ALLREDUCE) -> AlgorithmChoice:
        """Return the pattern."""
        return AlgorithmChoice(self._algorithm, self._ways.protocol, 1)

    def demand(self, operation: Operation, size_bytes: int) -> Demand:
        """Return the longest chain's latency and all the bytes of the schedule at the rate of its steps.

        Of what is half an allreduce, a start, half of what an allreduce does after it, and the bytes of the links that
        this half sends over.

        Raises:
            InputError: a send and receive, or an all-to-all, of which a pattern is no part.
        """
        self._check(operation)
        demand = self._make_demand(size_bytes)
        if operation is Operation.ALLREDUCE:
            return demand
        loads = self._loads(self._halves[operation.reduces]) if demand.loads else {}
        latency_s = (self._ways.start_s(size_bytes) + demand.latency_s) / 2
        return Demand(latency_s, demand.size_bytes, loads, 2 * demand.rate_limit)

    def time_s(self, operation: Operation, size_bytes: int) -> float:
        """Return the time of an operation with nothing else in flight."""
        demand = self.demand(operation, size_bytes)
        return demand.latency_s + (demand.size_bytes / demand.rate_limit if demand.loads else 0.0)

    def steps(self, operation: Operation, size_bytes: int) -> Steps:
        """Return every transfer of the schedule, or of the half that sums or hands out."""
        self._check(operation)
        whole = operation is Operation.ALLREDUCE
        schedule = self._schedule if whole else self._halves[operation.reduces]
        start_s = self._ways.start_s(size_bytes)
        sent = size_bytes and schedule.transfers
        return Steps(start_s, (self._lane(schedule, size_bytes, self._connections),) if sent else ())

    def _check(self, operation: Operation) -> None:
        if operation in (Operation.SENDRECV, Operation.ALL_TO_ALL):
            what = f"{operation} by {self._algorithm}, which is a pattern of sums"
            raise InputError(what, place="algorithm", remedy="use auto")

    def _make_demand(self, size_bytes: int) -> Demand:
        start_s = self._ways.start_s(size_bytes)
        if not self._schedule.transfers or size_bytes == 0:
            return Demand(start_s, 0, {})
        return Demand(start_s + self._latency_s(), size_bytes, self._loads(self._schedule), self._rate)

    @cached_property
    def _halves(self) -> Mapping[bool, TransferSchedule]:
        """The half of the schedule that sums, under True, and the half that hands out."""
        return {reduce: schedules.half(self._schedule, reduce=reduce) for reduce in (True, False)}

    def _loads(self, schedule: TransferSchedule) -> dict[LinkId, float]:
        """Return bytes on each link for a byte of the message."""
        return total_by_key(
            (link, load * ((transfer.stop - transfer.start) / schedule.chunks))
            for transfer in schedule.transfers
            for link, load in self._connections[transfer.source, transfer.target].loads.items()
        )

    @cached_property
    def _rate(self) -> float:
        # Whoever asks for the names of patterns alone, as a machine's page does, simulates nothing.
        import simpy

        from ddpsim.collectives.network.fluid import Network
        from ddpsim.collectives.steps import carry_out

        env = simpy.Environment()
        no_latency = {pair: replace(each, latency_s=0.0) for pair, each in self._connections.items()}
        lane = self._lane(self._schedule, _PROBE_BYTES, no_latency)
        env.run(carry_out(Network(env, self.capacities), Steps(0.0, (lane,))))
        return float(_PROBE_BYTES / env.now)

    def _lane(
        self, schedule: TransferSchedule, size_bytes: int, connections: Mapping[tuple[int, int], Connection]
    ) -> ChannelSchedule:
        return ChannelSchedule(schedule, size_bytes / schedule.chunks, connections, _WINDOW)

    def _latency_s(self) -> float:
        """Return the latency of the longest chain of transfers, each of which waits for those before it."""
        ends: list[float] = []
        for transfer in self._schedule.transfers:
            before = max((ends[number] for number in transfer.after), default=0.0)
            ends.append(before + self._connections[transfer.source, transfer.target].latency_s)
        return max(ends)
