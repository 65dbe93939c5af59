"""In-switch reductions as single transfers: up to the switch, one sum to the piece's head, back, and out to all."""

from __future__ import annotations

from collections.abc import Iterator

from ddpsim.collectives import tree_schedules
from ddpsim.collectives.nccl.layout import Layout
from ddpsim.collectives.nccl.loads import NVSWITCH
from ddpsim.collectives.nccl.steps import Timing, connection
from ddpsim.collectives.nccl.tree_steps import Way, list_chain_links
from ddpsim.collectives.schedules import refuse_too_many
from ddpsim.collectives.transport import ChannelSchedule, Steps
from ddpsim.collectives.trees import double_binary_tree
from ddpsim.topology.node import VertexKind


def in_switch(timing: Timing, layout: Layout, size_bytes: int, pieces: int, window: int) -> Steps:
    """Return the transfers of NVLS on one node, of NVLSTree over several: there heads send along double binary trees.

    Args:
        layout: every node with links of its own.
        pieces: into which each head cuts its bytes.
    """
    trees = [tree.parents for tree in double_binary_tree(layout.nodes)] if layout.nodes > 1 else [(None,)]
    heads = _heads(layout)
    each = 2 * (layout.nodes * (layout.per_node + 1) + layout.nodes - 1)
    refuse_too_many(len(trees) * pieces * len(heads) * each)
    inside = dict(_list_switch_links(layout))
    lanes, every = [], dict(inside)
    for parents in trees:
        between = dict(_list_head_links(layout, parents, heads))
        every |= between
        connections = {pair: connection(timing, 0.0, way, timing.rate) for pair, way in inside.items()}
        connections |= {pair: connection(timing, timing.net_s, way, timing.rate) for pair, way in between.items()}
        schedule = tree_schedules.in_switch(parents, layout.per_node, list(heads), pieces)
        chunk_bytes = size_bytes / len(trees) / schedule.chunks
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
