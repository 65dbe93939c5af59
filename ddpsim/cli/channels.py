"""The channels of a machine's nodes, for `ddpsim topo show --channels`."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ddpsim.common.tables import table_of

if TYPE_CHECKING:
    from ddpsim.collectives.channels import Channel, Channels
    from ddpsim.topology.graph import Cluster, Topology

Found = dict[str, "Channels"]


def channels_of(machine: Cluster, *, pxn: bool = True, gpudirect: bool | None = None) -> Found:
    """Return the channels of each node template, on one node and, where it has NICs, among several.

    Args:
        pxn: whether a GPU may send to a far NIC through a GPU near it.
        gpudirect: overrides what the NICs say; None keeps it.
    """
    from ddpsim.collectives.channels import find_channels

    found: Found = {}
    for group in machine.groups:
        template = group.template
        gpus = machine.gpus_of(template)[: machine.gpus_per_node]
        found[_format_one_node(template.name)] = find_channels(template, gpus)
        if template.nics:
            found[_format_several_nodes(template.name)] = find_channels(
                template, gpus, network=True, pxn=pxn, gpudirect=gpudirect
            )
    return found


def trees_over(nodes: int) -> list[tuple[int | None, ...]]:
    """Return the parent of each node in both of NCCL's trees; none over one node."""
    from ddpsim.collectives.trees import double_binary_tree

    return [tree.parents for tree in double_binary_tree(nodes)] if nodes > 1 else []


def walks(machine: Topology, found: Found) -> dict[str, dict[str, list[tuple[str, ...]]]]:
    """Return the distinct rings of each template to draw: closed on one node, between NICs among several."""
    rows: dict[str, dict[str, list[tuple[str, ...]]]] = {}
    for group in machine.groups:
        name = group.template.name
        rows[name] = {}
        if channels := found.get(_format_one_node(name)):
            orders = dict.fromkeys(ring.gpus for ring in channels.rings)
            rows[name]["one node"] = [(*order, order[0]) for order in orders]
        if channels := found.get(_format_several_nodes(name)):
            rows[name]["several nodes"] = list(dict.fromkeys(_list_stops(ring) for ring in channels.rings))
    return rows


def channels_document(found: Found) -> list[dict[str, object]]:
    """Return the channels as JSON values."""
    return [
        {
            "where": where,
            "bus_bandwidth_Bps": channels.bus_bandwidth,
            # A ring of one GPU passes no link, so that none bounds it.
            "sustained_bandwidth_Bps": channels.sustained_bandwidth if any(channels.loads()) else None,
            "rings": [
                {
                    "gpus": list(ring.gpus),
                    "nic_in": ring.nic_in,
                    "nic_out": ring.nic_out,
                    "bandwidth_Bps": ring.bandwidth,
                    "route_kind": ring.kind,
                    "nic_route_kind": ring.nic_kind if ring.nic_in else None,
                }
                for ring in channels.rings
            ],
            "tree_chains": [
                {"gpus": list(chain.gpus), "nic": chain.nic_in, "bandwidth_Bps": channels.tree_intra_bandwidth}
                for chain in channels.trees
            ],
        }
        for where, channels in found.items()
    ]


def channels_text(found: Found, trees: list[tuple[int | None, ...]]) -> str:
    """Return rings and chains of trees as text, equal ones once, and the trees over nodes."""
    from ddpsim.common.units import format_bandwidth, format_count

    blocks = []
    for where, channels in found.items():
        total = format_bandwidth(channels.bus_bandwidth)
        heading = f"{where}: {format_count(len(channels.rings), 'channel')}, {total} as NCCL counts it"
        rows = [
            {
                "channels": n,
                "ring": _format_ring(ring),
                "channel_bandwidth_Bps": ring.bandwidth,
                "farthest route": ring.kind,
                "to the NIC": ring.nic_kind if ring.nic_in else None,
            }
            for ring, n in _count_channels(channels.rings)
        ]
        rings = table_of("", rows).text()
        blocks.append(f"{heading}\n{rings}\n{_chains_text(channels)}")
    if trees:
        blocks.append(
            "\n".join([f"double binary tree over {format_count(len(trees[0]), 'node')}", *_tree_lines(trees)])
        )
    return "\n\n".join(blocks)


def _chains_text(channels: Channels) -> str:
    """Return the chains of trees: in a word where each is a ring's order."""
    from ddpsim.common.units import format_bandwidth

    inside = format_bandwidth(channels.tree_intra_bandwidth)
    if all(chain.gpus == ring.gpus for chain, ring in zip(channels.trees, channels.rings, strict=True)):
        return f"trees: a chain in each ring's order, {inside} each inside the node"
    rows = [
        {
            "channels": n,
            "chain of a tree, inside a node": " ".join((*([chain.nic_in] if chain.nic_in else []), *chain.gpus)),
            "channel_bandwidth_Bps": channels.tree_intra_bandwidth,
        }
        for chain, n in _count_channels(channels.trees)
    ]
    return table_of("", rows).text()


def _tree_lines(trees: list[tuple[int | None, ...]]) -> list[str]:
    """Return a line a tree: its root, and after each parent its children."""
    lines = []
    for number, parents in enumerate(trees):
        children: dict[int, list[int]] = {}
        for node, parent in enumerate(parents):
            if parent is not None:
                children.setdefault(parent, []).append(node)
        under = "; ".join(f"{parent}: {' '.join(map(str, below))}" for parent, below in sorted(children.items()))
        lines.append(f"tree {number}: root {parents.index(None)}; {under}")
    return lines


def _count_channels(channels: tuple[Channel, ...]) -> list[tuple[Channel, int]]:
    return list(Counter(channels).items())


def _format_one_node(name: str) -> str:
    return f"{name}, one node"


def _format_several_nodes(name: str) -> str:
    return f"{name}, several nodes"


def _list_stops(ring: Channel) -> tuple[str, ...]:
    return (*([ring.nic_in] if ring.nic_in else []), *ring.gpus, *([ring.nic_out] if ring.nic_out else []))


def _format_ring(ring: Channel) -> str:
    return " ".join(_list_stops(ring))
