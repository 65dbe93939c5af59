"""Two jobs on one machine: which nodes each has, and the links between switches that both load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ddpsim.common.errors import TopologyError
from ddpsim.topology.declared import Cluster, DegradedLink, NodeGroup, SharedFabric
from ddpsim.topology.placement import Placement, place

MOST_BESIDE = 128
"""Nodes of two jobs together, at most: each has links of its own in the graph; by hand, to answer in 10 s."""

_MOST_NUMBERED = 8 * MOST_BESIDE
"""Nodes of the machine up to the last that either job has, at most."""


def place_beside(
    own: Placement, nodes: int | Sequence[int], gpus_per_node: int | None = None, *, alternate: bool = False
) -> tuple[Placement, Placement]:
    """Return the placement of a job and that of another beside it, on the machine that the first is placed on.

    Links between switches have the bandwidth that all nodes up to the last of either job's give them, where the
    machine's file derives it from those of NICs.

    Args:
        own: of the job asked about, on the first nodes.
        nodes: of the other: how many, or which.
        gpus_per_node: of the other's nodes; None is all.
        alternate: whether the other's nodes lie between those of the first, every other one; else after them.

    Raises:
        TopologyError: more nodes than the machine has, one that both jobs have, or a domain that is cut.
    """
    topology = own.topology
    mine, others = _numbers(own.nodes, nodes, alternate=alternate)
    both = sorted(set(mine) & set(others))
    if both:
        what = f"the first {own.nodes} nodes are the job's that is asked about, node {both[0]} of them is the other's"
        raise TopologyError(what, place="beside: nodes", remedy=f"name nodes from {own.nodes} on, or give a count")
    if own.nodes + len(others) > MOST_BESIDE:
        what = f"two jobs of {own.nodes} and {len(others)} nodes are more than the {MOST_BESIDE} that are told apart"
        raise TopologyError(what, place="beside: nodes", remedy="ask for fewer; what is shared shows in fewer")
    in_all = max(*mine, *others) + 1
    most = _MOST_NUMBERED if topology.elastic else topology.nodes
    if in_all > most:
        what = f"both jobs need {in_all} nodes of {topology.name}, which has {most}"
        remedy = "ask for fewer, or raise a count under `nodes` in its file"
        raise TopologyError(what, place="beside: nodes", remedy=remedy)
    ports = tuple(topology.ports(in_all).items())
    first = _place_on(topology, mine, ports, own.gpus_per_node)
    try:
        return first, _place_on(topology, others, ports, gpus_per_node)
    except TopologyError as error:
        error.at("beside" if error.place is None else f"beside: {error.place}")


def _numbers(own: int, nodes: int | Sequence[int], *, alternate: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return which nodes of the machine each job has."""
    if not isinstance(nodes, int):
        return tuple(range(own)), tuple(nodes)
    if not alternate:
        return tuple(range(own)), tuple(range(own, own + nodes))
    pairs = min(own, nodes)
    rest = range(2 * pairs, own + nodes)
    mine, others = [2 * number for number in range(pairs)], [2 * number + 1 for number in range(pairs)]
    return (*mine, *(rest if own > nodes else ())), (*others, *(rest if nodes > own else ()))


def _place_on(
    topology: Cluster, numbers: tuple[int, ...], ports: tuple[tuple[str, float], ...], gpus_per_node: int | None
) -> Placement:
    at = {number: node for node, number in enumerate(numbers)}
    degraded = [
        entry if entry.node is None else DegradedLink(entry.link, at[entry.node], entry.change)
        for entry in topology.degraded
        if entry.node is None or entry.node in at
    ]
    groups = topology.groups if len(topology.groups) == 1 else tuple(_groups(topology, numbers))
    part = replace(
        topology,
        groups=groups,
        degraded=tuple(degraded),
        fabric=replace(topology.fabric, shared=SharedFabric(numbers, ports)),
    )
    _check_domains(part, numbers)
    return place(part, len(numbers), gpus_per_node)


def _groups(topology: Cluster, numbers: Sequence[int]) -> list[NodeGroup]:
    groups: list[NodeGroup] = []
    for number in numbers:
        template = topology.template_of(number)
        if groups and groups[-1].template is template:
            groups[-1] = NodeGroup(template, groups[-1].count + 1)
        else:
            groups.append(NodeGroup(template, 1))
    return groups


def _check_domains(part: Cluster, numbers: Sequence[int]) -> None:
    """Raise `TopologyError` where nodes that NCCL takes for one NVLink domain lie in several."""
    domain = part.nvlink_domain
    if domain is None or not domain.mnnvl or len(numbers) == 1:
        return
    share = domain.share(len(numbers))
    for begin in range(0, len(numbers), share):
        racks = {number // domain.nodes for number in numbers[begin : begin + share]}
        if len(racks) > 1:
            what = f"nodes {numbers[begin]} to {numbers[begin + share - 1]} lie in {len(racks)} NVLink domains"
            raise TopologyError(what, place="nodes", remedy=f"list nodes of whole domains of {domain.nodes}")
