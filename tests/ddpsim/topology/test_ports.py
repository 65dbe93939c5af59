"""Bandwidth under leaf switches: what is added up node by node, whatever fabric joins the nodes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddpsim.topology.declared import Cluster, Fabric, NodeGroup, SharedFabric
from ddpsim.topology.spec import load_topology


def node_by_node(machine: Cluster, nodes: int) -> dict[str, float]:
    found: dict[str, float] = {}
    for node in range(nodes):
        for index, nic in enumerate(machine.template_of(node).nics):
            leaf = machine.fabric.leaf(node, index)
            found[leaf] = found.get(leaf, 0.0) + nic.bandwidth
    return found


@pytest.mark.parametrize(
    "fabric",
    [
        Fabric("flat"),
        Fabric("rail"),
        Fabric("rail", nodes_per_leaf=4),
        Fabric("two-level", nodes_per_leaf=3),
        Fabric("two-level"),
        Fabric("two-level", nodes_per_leaf=2, shared=SharedFabric((0, 2, *range(4, 40)), ())),
        Fabric("rail", nodes_per_leaf=4, fused=(2, 8)),
    ],
)
@pytest.mark.parametrize("nodes", [1, 5, 6, 17])
def test_ports_are_those_of_all_nodes(fabric: Fabric, nodes: int) -> None:
    fast, slow = (load_topology(name).groups[0].template for name in ("dgx-h100", "dgx-1v"))
    for groups in ((NodeGroup(fast, 1),), (NodeGroup(fast, 5), NodeGroup(slow, 20)), (NodeGroup(slow, 2),) * 3):
        machine = replace(load_topology("dgx-h100"), groups=groups, fabric=fabric)
        found, counted = machine.ports(nodes), node_by_node(machine, nodes)
        assert list(found) == list(counted)
        assert found == pytest.approx(counted)
