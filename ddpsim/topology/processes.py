"""A network of processes, one a node, as a lab and a tuner that sees no machine take it."""

from __future__ import annotations

from ddpsim.common.errors import TopologyError
from ddpsim.common.units import format_bandwidth
from ddpsim.topology.build import build_node
from ddpsim.topology.cluster import Topology
from ddpsim.topology.declared import DegradedLink, Fabric, NodeGroup
from ddpsim.topology.node import NETWORK, Degradation
from ddpsim.topology.schema import NodeSpec

LOCAL_BANDWIDTH = "100GB/s"
"""Between a process and its own NIC: far above any rate a lab can shape."""


def lab_topology(
    ranks: int,
    rate: float,
    delay_s: float = 0.0,
    *,
    slow: tuple[int, float] | None = None,
    trunk: float | None = None,
    name: str | None = None,
) -> Topology:
    """Return the topology of `netlab` by `ranks`, `rate` and `delay`: one process a node, all nodes on one switch.

    Args:
        ranks: number of nodes, one rank each.
        rate: of each node's NIC, bytes/s in each direction.
        delay_s: one way from node to node, half of it on each of the two NICs' cables.
        slow: the node whose NIC has another rate, and that rate.
        trunk: bytes/s between the first and the second half of the nodes, each half on a switch of its own.

    Raises:
        TopologyError: fewer than two ranks, or a slow node that does not exist.
    """
    if ranks < 2:
        raise TopologyError(f"{ranks} ranks", place="ranks", remedy="a network needs at least 2")
    if slow is not None and not 0 <= slow[0] < ranks:
        raise TopologyError(f"node {slow[0]} of {ranks}", place="slow", remedy="number nodes from 0")
    local = {"count": 1, "rate": LOCAL_BANDWIDTH, "total": LOCAL_BANDWIDTH}
    nic = {"kind": "ethernet", "rate": format_bandwidth(rate), "delay": f"{delay_s / 2 * 1e9:.6g}ns"}
    node = build_node("lab", NodeSpec.model_validate({"processes": local, "nics": [nic]}), "lab")
    fabric = Fabric("flat")
    if trunk is not None:
        fabric = Fabric("two-level", nodes_per_leaf=-(-ranks // 2), trunk_bandwidth=trunk)
    return Topology(
        name=name or f"lab-{ranks}",
        groups=(NodeGroup(node, ranks),),
        fabric=fabric,
        degraded=() if slow is None else (DegradedLink(f"nic0-{NETWORK}", slow[0], Degradation(bandwidth=slow[1])),),
        sources=("shaped by ddpexec netlab",),
        confidence="set, not measured",
    )
