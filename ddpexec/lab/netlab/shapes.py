"""The lab network that is built from a topology, which the simulator reads."""

from __future__ import annotations

from ddpexec.lab.netlab.network import Host, LabNetwork, LinkDirection
from ddpsim.common.errors import TopologyError
from ddpsim.topology.cluster import Topology


def lab_network(topology: Topology, nodes: int | None = None, gpus_per_node: int | None = None) -> LabNetwork:
    """Return the network to build for the first `nodes` nodes of `topology`, one host each.

    Raises:
        TopologyError: a node without a NIC or with several.
    """
    placement = topology.place(nodes, gpus_per_node)
    hosts = [
        Host(f"node{node}", tuple(placement.rank_of(node, gpu) for gpu in range(placement.gpus_per_node)))
        for node in range(placement.nodes)
    ]
    for node in range(placement.nodes):
        if len(nics := placement.class_of(node).template.nics) != 1:
            raise TopologyError(
                f"node{node} of {topology.name} has {len(nics)} NICs",
                place="netlab",
                remedy="a lab's nodes have one NIC each; describe them as one of the summed rate"
                if nics
                else "give it one",
            )
    wires = []
    for source, target, link in topology.graph(placement.nodes).edges(data="link"):
        if link.kind in ("nic", "network"):
            wires.append(
                LinkDirection(_host_or_switch(source), _host_or_switch(target), link.bandwidth, link.latency_s)
            )
    switches = {end for wire in wires for end in (wire.source, wire.target)} - {host.name for host in hosts}
    return LabNetwork(tuple(hosts), tuple(sorted(switches)), tuple(wires))


def _host_or_switch(vertex: str) -> str:
    return vertex.partition("/")[0]
