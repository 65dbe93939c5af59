"""NCCL graph dumps (`NCCL_GRAPH_DUMP_FILE`): the rings that NCCL itself found, taken instead of a search.

Source of the format: NCCL 2.30 `src/graph/search.cc`, `ncclTopoGetXmlFromGraphs`; pattern 4 is a ring.
"""

from __future__ import annotations

from dataclasses import replace

from ddpsim.errors import TopologyError
from ddpsim.topology.cluster import NodeGroup, Topology
from ddpsim.topology.node import check_ring
from ddpsim.topology.xml_text import Element, read_xml

_RING_PATTERN = "4"


def with_graph_dump(topology: Topology, text: str, place: str) -> Topology:
    """Return `topology` with the rings of a graph dump in each of its templates that has their devices.

    Raises:
        TopologyError: malformed, without a ring, or naming a device that no template has.
    """
    root = read_xml(text, place)
    if root.tag != "graphs":
        raise TopologyError(
            f"<{root.tag}> is no graph dump",
            place=f"{place}: line {root.line}",
            remedy="give the file of NCCL_GRAPH_DUMP_FILE",
        )
    graphs = [graph for graph in root.children if graph.attributes.get("pattern") == _RING_PATTERN]
    channels = [channel for graph in graphs[:1] for channel in graph.children if channel.tag == "channel"]
    if not channels:
        raise TopologyError("no ring (pattern 4) in it", place=place, remedy="dump the graphs of an NCCL run")
    rings = tuple(_ring(channel, place) for channel in channels)
    groups = tuple(_with_rings(group, rings) for group in topology.groups)
    if groups == topology.groups:
        raise TopologyError(
            f"its rings pass {', '.join(sorted({name for ring in rings for name in ring}))}, "
            f"which {topology.name} does not have",
            place=place,
            remedy="give the graph of this machine",
        )
    return replace(topology, groups=groups)


def _ring(channel: Element, place: str) -> tuple[str, ...]:
    names = []
    for stop in channel.children:
        if stop.tag not in ("gpu", "net") or not stop.attributes.get("dev", "").isdigit():
            raise TopologyError(
                f"<{stop.tag}> with dev={stop.attributes.get('dev')!r} in a channel",
                place=f"{place}: line {stop.line}",
                remedy="a channel lists <gpu dev=N/> and <net dev=N/>",
            )
        names.append(f"{'gpu' if stop.tag == 'gpu' else 'nic'}{stop.attributes['dev']}")
    check_ring(names, f"{place}: line {channel.line}")
    return tuple(names)


def _with_rings(group: NodeGroup, rings: tuple[tuple[str, ...], ...]) -> NodeGroup:
    template = group.template
    known = {device.name for device in template.gpus} | {nic.name for nic in template.nics}
    if not all(name in known for ring in rings for name in ring):
        return group
    return NodeGroup(replace(template, rings=rings), group.count)
