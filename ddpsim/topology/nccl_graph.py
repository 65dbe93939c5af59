"""NCCL graph dumps (`NCCL_GRAPH_DUMP_FILE`): the rings and trees that NCCL itself found, taken instead of a search.

Source of the format: NCCL 2.30 `src/graph/search.cc`, `ncclTopoGetXmlFromGraphs`: graph 0 holds rings (pattern 4),
graph 1 trees; NCCL uses as many channels as both have. Devices were decimal numbers in older versions and are
hexadecimal now, with the system's number in the highest byte.
"""

from __future__ import annotations

from dataclasses import replace

from ddpsim.common.errors import TopologyError
from ddpsim.topology.cluster import Topology
from ddpsim.topology.declared import NodeGroup
from ddpsim.topology.node import Vertex, VertexKind, check_ring
from ddpsim.topology.xml_text import Element, read_xml

_RING_PATTERN = "4"
_TREE_PATTERNS = ("1", "2", "3")
_TREE_ID = "1"
_LOCAL_ID = (1 << 56) - 1
"""Bits of a device's number on its node; NCCL has the node's in the eight above."""
_GB = 1e9
"""Bytes per second of one GB/s, in which NCCL writes speeds."""


def with_graph_dump(topology: Topology, text: str, place: str) -> Topology:
    """Return `topology` with the rings and trees of a graph dump in each of its templates that has their devices.

    Raises:
        TopologyError: malformed, without a ring, naming a device that no template has, or passing fewer GPUs.
    """
    root = read_xml(text, place)
    if root.tag != "graphs":
        raise TopologyError(
            f"<{root.tag}> is no graph dump",
            place=f"{place}: line {root.line}",
            remedy="give the file of NCCL_GRAPH_DUMP_FILE",
        )
    graphs = [graph for graph in root.children if graph.tag == "graph"]
    ring = next((graph for graph in graphs if graph.attributes.get("pattern") == _RING_PATTERN), None)
    tree = next((graph for graph in graphs if _is_tree(graph)), None)
    rings, trees = _channels(ring, place), _channels(tree, place)
    if ring is None or not rings:
        raise TopologyError("no ring (pattern 4) in it", place=place, remedy="dump the graphs of an NCCL run")
    # NCCL gives each channel a ring and a tree, so that it has as many as the fewer of both.
    used = min(len(rings), len(trees)) if trees else len(rings)
    groups = tuple(
        _with_graphs(
            group,
            rings=rings[:used],
            trees=trees[:used],
            ring_bandwidth=_speed(ring, place),
            tree_bandwidth=_speed(tree, place) if tree is not None and trees else None,
        )
        for group in topology.groups
    )
    # A template without the dump's devices stays as it is, as in a cluster of several kinds of nodes; that none
    # changed means that the dump is of another machine, or of a job on fewer GPUs, whose rings say nothing of one on
    # all.
    if groups == topology.groups:
        passed = sorted({name for ring in rings for name in ring})
        gpus = max((group.template.gpus for group in topology.groups), key=len)
        fewer = f" {sum(gpu.name in passed for gpu in gpus)} of the {len(gpus)} GPUs that {topology.name} has"
        raise TopologyError(
            f"its rings pass {', '.join(passed)},"
            + (fewer if {*passed} <= _devices(topology) else f" which {topology.name} does not have"),
            place=place,
            remedy="give the graph of a run on all GPUs of this machine",
        )
    return replace(topology, groups=groups)


def _devices(cluster: Topology) -> set[str]:
    templates = [group.template for group in cluster.groups]
    return {gpu.name for each in templates for gpu in each.gpus} | {nic.name for each in templates for nic in each.nics}


def _is_tree(graph: Element) -> bool:
    return graph.attributes.get("id") == _TREE_ID and graph.attributes.get("pattern") in _TREE_PATTERNS


def _channels(graph: Element | None, place: str) -> tuple[tuple[str, ...], ...]:
    children = graph.children if graph is not None else []
    return tuple(_parse_stops(channel, place) for channel in children if channel.tag == "channel")


def _speed(graph: Element, place: str) -> float | None:
    """Return bytes per second of one channel inside the node; None where the graph does not say."""
    text = graph.attributes.get("speedintra")
    if text is None:
        return None
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0 < speed < float("inf"):
        raise TopologyError(
            f"speedintra={text!r}", place=f"{place}: line {graph.line}", remedy="give it in GB/s, above zero"
        )
    return speed * _GB


def _parse_stops(channel: Element, place: str) -> tuple[str, ...]:
    stops = []
    for stop in channel.children:
        device = _device(stop.attributes.get("dev", ""))
        if stop.tag not in ("gpu", "net") or device is None:
            raise TopologyError(
                f"<{stop.tag}> with dev={stop.attributes.get('dev')!r} in a channel",
                place=f"{place}: line {stop.line}",
                remedy="a channel lists <gpu dev=N/> and <net dev=N/>",
            )
        stops.append(Vertex.numbered(VertexKind.GPU if stop.tag == "gpu" else VertexKind.NIC, device))
    check_ring(stops, f"{place}: line {channel.line}")
    return tuple(stop.name for stop in stops)


def _device(text: str) -> int | None:
    """Return a device's number on its node."""
    try:
        number = int(text, 0)
    except ValueError:
        return None
    return number & _LOCAL_ID if number >= 0 else None


def _with_graphs(
    group: NodeGroup,
    *,
    rings: tuple[tuple[str, ...], ...],
    trees: tuple[tuple[str, ...], ...],
    ring_bandwidth: float | None,
    tree_bandwidth: float | None,
) -> NodeGroup:
    template = group.template
    gpus = {gpu.name for gpu in template.gpus}
    known = gpus | {nic.name for nic in template.nics}
    if not all(gpus <= {*stops} <= known for stops in (*rings, *trees)):
        return group
    stated = replace(template, rings=rings, trees=trees, ring_bandwidth=ring_bandwidth, tree_bandwidth=tree_bandwidth)
    return NodeGroup(stated, group.count)
