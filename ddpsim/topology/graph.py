"""The types of a topology, in one place: nodes, clusters, placements."""

from ddpsim.topology.cluster import Topology
from ddpsim.topology.declared import Cluster, DegradedLink, Fabric, NodeGroup
from ddpsim.topology.node import NETWORK, Cpu, Degradation, Gpu, Link, Nic, NodeTemplate
from ddpsim.topology.placement import NodeClass, Placement

__all__ = [
    "NETWORK",
    "Cluster",
    "Cpu",
    "Degradation",
    "DegradedLink",
    "Fabric",
    "Gpu",
    "Link",
    "Nic",
    "NodeClass",
    "NodeGroup",
    "NodeTemplate",
    "Placement",
    "Topology",
]
