"""NCCL's trees as single transfers: every piece up to the root and down again, chain by chain, node by node."""

from __future__ import annotations

from collections.abc import Iterator

from ddpsim.collectives import tree_schedules
from ddpsim.collectives.channels import Channel
from ddpsim.collectives.nccl.layout import Layout
from ddpsim.collectives.nccl.loads import HOST, NET, reverse_route
from ddpsim.collectives.nccl.steps import Timing, connection
from ddpsim.collectives.network.fairness import LinkId
from ddpsim.collectives.routes import PlacedLink
from ddpsim.collectives.schedules import refuse_too_many
from ddpsim.collectives.transport import ChannelSchedule, Connection, Steps
from ddpsim.collectives.trees import double_binary_tree

Way = list[tuple[PlacedLink, str, float]]


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
    trees = _parents(layout)
    refuse_too_many(len(chains) * len(trees) * pieces * 2 * (layout.ranks - 1))
    capacities: dict[LinkId, float] = {}
    lanes = []
    for same in chains.values():
        for parents in trees:
            share = len(same) / layout.rings / len(trees)
            ways = dict(_list_parent_links(layout, same[0], parents))
            capacities |= {placed.name: placed.link.bandwidth for way in ways.values() for placed, _, _ in way}
            connections = _connections(timing, layout, ways, share)
            schedule, chunk_bytes = tree_schedules.tree(parents, pieces), size_bytes * share / pieces
            lanes.append(ChannelSchedule(schedule, chunk_bytes, connections, window, weight=share))
    return Steps(timing.start_s, tuple(lanes), capacities)


def _connections(
    timing: Timing, layout: Layout, ways: dict[tuple[int, int], Way], share: float
) -> dict[tuple[int, int], Connection]:
    """Return what a lane of this share has between two ranks that its tree joins."""
    near, far = (timing.hop_s, timing.rate * share), (timing.net_s, timing.net_rate * share)
    found = {}
    for pair, way in ways.items():
        latency_s, rate = near if pair[0] // layout.per_node == pair[1] // layout.per_node else far
        found[pair] = connection(timing, latency_s, way, rate)
    return found


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
