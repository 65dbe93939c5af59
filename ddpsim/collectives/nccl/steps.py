"""NCCL's patterns as single transfers, which `fidelity=steps` carries out one by one.

A ring goes from GPU to GPU, node by node. A tree sends every piece up to its root and down again, chain by chain. An
in-switch reduction sends it up to the switch, one sum to the piece's head, back, and out to all.

Lanes are carried out side by side: channels whose hops are on the same links are one lane with the bytes of all, for
each transfer is an event, and 32 channels alike would be 32 times as many.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ddpsim.collectives import schedules, trees
from ddpsim.collectives.channels import Channel
from ddpsim.collectives.nccl.layout import Layout
from ddpsim.collectives.nccl.loads import HOST, NET, NVSWITCH, reverse_route
from ddpsim.collectives.nccl.pieces import window_of
from ddpsim.collectives.nccl.versions import SIMPLE
from ddpsim.collectives.network.fairness import LinkId
from ddpsim.collectives.routes import PlacedLink, total_by_key
from ddpsim.collectives.schedules import ChannelSchedule, Connection, Steps, build_ring, refuse_too_many
from ddpsim.collectives.trees import double_binary_tree
from ddpsim.common.operation import Operation
from ddpsim.topology.node import VertexKind

Way = list[tuple[PlacedLink, str, float]]
"""Links from one GPU to another, each with the kind of hop it is part of, and its bytes for a byte sent."""


@dataclass(frozen=True, slots=True)
class Timing:
    """What a transfer costs.

    Attributes:
        start_s: before the first step.
        hop_s, net_s: latency of a step inside a node, and between nodes.
        rate: bytes per second that all channels together move.
        net_rate: the same between nodes, of a tree.
        load_factors: bytes on a link for a byte of the chunk, by kind of hop.
        pieces: into which a chain cuts a message.
        window: pieces that may be under way between two GPUs of a ring.
    """

    start_s: float
    hop_s: float
    net_s: float
    rate: float
    net_rate: float
    load_factors: Mapping[str, float]
    pieces: int = 1
    window: int = window_of(SIMPLE)


_Hop = tuple[float, Way]
"""Latency of a ring's hop, and its way."""


def ring(timing: Timing, layout: Layout, size_bytes: int, operation: Operation = Operation.ALLREDUCE) -> Steps:
    """Return each ring's steps of an operation; where one node stands for all, its part of them.

    Rings of the same hops are one lane that carries the bytes of all.
    """
    lanes: dict[tuple[tuple[object, ...], ...], tuple[list[_Hop], int]] = {}
    for index in range(layout.rings):
        ways = list(_list_hops(timing, layout, index))
        key = tuple(tuple(placed.name for placed, _, _ in links) for _, links in ways)
        lanes[key] = (ways, lanes[key][1] + 1 if key in lanes else 1)
    each = timing.pieces if operation.rooted else max(len(ways) for ways, _ in lanes.values())
    refuse_too_many(len(lanes) * each * operation.steps(layout.ranks))
    parts = tuple(_lane(timing, layout, size_bytes, operation, *lane) for lane in lanes.values())
    return Steps(timing.start_s, parts, layout.capacities)


def _lane(
    timing: Timing, layout: Layout, size_bytes: int, operation: Operation, ways: list[_Hop], rings: int
) -> ChannelSchedule:
    share, ranks = rings / layout.rings, layout.ranks
    connections = {
        (place, (place + 1) % len(ways)): connection(timing, latency_s, way, timing.rate * share)
        for place, (latency_s, way) in enumerate(ways)
    }
    if len(ways) == ranks:
        whole = operation is Operation.ALLREDUCE
        schedule = schedules.ring(ranks) if whole else build_ring(operation, ranks, timing.pieces)
    else:
        schedule = schedules.periodic_ring(len(ways), operation.steps(ranks))
    parts = timing.pieces if operation.rooted else operation.parts(ranks)
    return ChannelSchedule(schedule, size_bytes * share / parts, connections, timing.window, weight=rings)


def connection(timing: Timing, latency_s: float, way: Way, rate: float) -> Connection:
    """Return what a transfer over the links of `way` asks of them."""
    loads = total_by_key((placed.name, load * timing.load_factors[group]) for placed, group, load in way)
    return Connection(latency_s, loads, rate)


def _list_hops(timing: Timing, layout: Layout, index: int) -> Iterator[_Hop]:
    """Yield the hop from each GPU of ring `index` to the next, node by node."""
    boundaries = dict(layout.wiring.boundaries)
    for node in layout.wiring.nodes:
        here = layout.channels_of(node).rings[index]
        for route in here.routes:
            yield timing.hop_s, list(layout.inside(node, route))
        if layout.nodes > 1:
            after = boundaries[node]
            there = layout.channels_of(after).rings[index]
            yield timing.net_s, list(layout.between(node, here, after, there))


def tree(timing: Timing, layout: Layout, size_bytes: int, pieces: int, window: int) -> Steps:
    """Return the transfers of an allreduce by trees.

    Each channel's chain runs through every node and belongs to both trees of `double_binary_tree`, half its bytes to
    each; chains over the same links are one lane that carries the bytes of all.

    Args:
        layout: every node with links of its own.
        pieces: into which each chain cuts its bytes.
    """
    chains: dict[tuple[tuple[str, ...], ...], list[int]] = {}
    for index in range(layout.rings):
        key = tuple(_names(layout, node, index) for node in range(layout.nodes))
        chains.setdefault(key, []).append(index)
    parents_of = _parents(layout)
    refuse_too_many(len(chains) * len(parents_of) * pieces * 2 * (layout.ranks - 1))
    capacities: dict[LinkId, float] = {}
    lanes = []
    for same in chains.values():
        for parents in parents_of:
            share = len(same) / layout.rings / len(parents_of)
            ways = dict(_list_parent_links(layout, same[0], parents))
            capacities |= {placed.name: placed.link.bandwidth for way in ways.values() for placed, _, _ in way}
            connections = _connections(timing, layout, ways, share)
            schedule, chunk_bytes = trees.tree(parents, pieces), size_bytes * share / pieces
            lanes.append(ChannelSchedule(schedule, chunk_bytes, connections, window, weight=share))
    return Steps(timing.start_s, tuple(lanes), capacities)


def _connections(
    timing: Timing, layout: Layout, ways: dict[tuple[int, int], Way], share: float
) -> dict[tuple[int, int], Connection]:
    """Return what a lane of this share has between two ranks that its tree joins."""
    near, far = (timing.hop_s, timing.rate * share), (timing.net_s, timing.net_rate * share)
    connections = {}
    for pair, way in ways.items():
        latency_s, rate = near if pair[0] // layout.per_node == pair[1] // layout.per_node else far
        connections[pair] = connection(timing, latency_s, way, rate)
    return connections


def _parents(layout: Layout) -> list[list[int | None]]:
    """Return the parent of each rank in each tree: along its node's chain, from its first GPU to another node's."""
    m = layout.per_node
    tops = [tree.parents for tree in double_binary_tree(layout.nodes)] if layout.nodes > 1 else [(None,)]
    return [
        [rank - 1 if rank % m else None if (up := top[rank // m]) is None else up * m for rank in range(layout.ranks)]
        for top in tops
    ]


def _list_parent_links(layout: Layout, index: int, parents: list[int | None]) -> Iterator[tuple[tuple[int, int], Way]]:
    """Yield the way from every rank to its parent and back; ranks are numbered along their node's chain."""
    m = layout.per_node
    for rank, parent in enumerate(parents):
        if parent is None:
            continue
        node, above = rank // m, parent // m
        if node == above:
            down = _chain(layout, node, index).routes[parent % m]
            yield (parent, rank), list(layout.inside(node, down))
            yield (rank, parent), list(layout.inside(node, reverse_route(layout.wiring.template(node), down)))
        else:
            yield (parent, rank), list(list_chain_links(layout, above, node, index))
            yield (rank, parent), list(list_chain_links(layout, node, above, index))


def list_chain_links(layout: Layout, source: int, target: int, index: int) -> Iterator[tuple[PlacedLink, str, float]]:
    """Yield the way from the first GPU of a node's chain to that of another node's."""
    out, into = _chain(layout, source, index), _chain(layout, target, index)
    if out.entry is None or into.entry is None or out.nic_in is None or into.nic_in is None:
        return
    for node, route in ((source, reverse_route(layout.wiring.template(source), out.entry)), (target, into.entry)):
        for placed, group, load in layout.inside(node, route):
            yield placed, HOST if group == HOST else NET, load
    for placed in layout.wiring.between(source, out.nic_in, target, into.nic_in):
        yield placed, NET, 1.0


def _chain(layout: Layout, node: int, index: int) -> Channel:
    return layout.channels_of(node).trees[index]


def _names(layout: Layout, node: int, index: int) -> tuple[str, ...]:
    chain = _chain(layout, node, index)
    return (*chain.gpus, str(chain.nic_in))


def in_switch(timing: Timing, layout: Layout, size_bytes: int, pieces: int, window: int) -> Steps:
    """Return the transfers of NVLS on one node, of NVLSTree over several: there heads send along double binary trees.

    Args:
        layout: every node with links of its own.
        pieces: into which each head cuts its bytes.
    """
    parents_of = [each.parents for each in double_binary_tree(layout.nodes)] if layout.nodes > 1 else [(None,)]
    heads = _heads(layout)
    each = 2 * (layout.nodes * (layout.per_node + 1) + layout.nodes - 1)
    refuse_too_many(len(parents_of) * pieces * len(heads) * each)
    inside = dict(_list_switch_links(layout))
    lanes, every = [], dict(inside)
    for parents in parents_of:
        between = dict(_list_head_links(layout, parents, heads))
        every |= between
        connections = {pair: connection(timing, 0.0, way, timing.rate) for pair, way in inside.items()}
        connections |= {pair: connection(timing, timing.net_s, way, timing.rate) for pair, way in between.items()}
        schedule = trees.in_switch(parents, layout.per_node, list(heads), pieces)
        chunk_bytes = size_bytes / len(parents_of) / schedule.chunks
        lanes.append(ChannelSchedule(schedule, chunk_bytes, connections, window))
    capacities = {placed.name: placed.link.bandwidth for way in every.values() for placed, _, _ in way}
    return Steps(timing.start_s, tuple(lanes), capacities)


def _heads(layout: Layout) -> dict[int, int]:
    """Return the GPUs that take sums: all on one node, else those by a chain's NIC; with one of their chains each."""
    if layout.nodes == 1:
        return dict.fromkeys(range(layout.per_node), 0)
    numbers = {gpu: n for n, gpu in enumerate(layout.placement.gpus(layout.placement.class_of(0)))}
    chains = layout.channels_of(0).trees[: layout.rings]
    return {numbers[chain.gpus[0]]: index for index, chain in enumerate(chains)}


def _list_switch_links(layout: Layout) -> Iterator[tuple[tuple[int, int], Way]]:
    """Yield the links of every GPU to its node's switch and back, for each side of the switch."""
    m = layout.per_node
    for node in range(layout.nodes):
        gpus = layout.placement.gpus(layout.placement.class_of(node))
        first = node * (m + 2)
        for number, gpu in enumerate(gpus):
            for link in layout.wiring.template(node).links:
                if gpu in (link.source, link.target) and link.at(VertexKind.NVSWITCH):
                    for side in (first + m, first + m + 1):
                        pair = (first + number, side) if link.source == gpu else (side, first + number)
                        yield pair, [(layout.wiring.at(node, [link])[0], NVSWITCH, 1.0)]


def _list_head_links(
    layout: Layout, parents: tuple[int | None, ...], heads: dict[int, int]
) -> Iterator[tuple[tuple[int, int], Way]]:
    """Yield the way of every head to that of its node's parent and back."""
    width = layout.per_node + 2
    for head, index in heads.items():
        for node, up in enumerate(parents):
            if up is not None:
                for source, target in ((node, up), (up, node)):
                    yield (
                        (source * width + head, target * width + head),
                        list(list_chain_links(layout, source, target, index)),
                    )
