from __future__ import annotations

import pytest

from ddpexec.lab.netlab.command import lab_network
from ddpexec.lab.netlab.network import Host, LabNetwork, LinkDirection, wire_bytes
from ddpsim.common.errors import TopologyError
from ddpsim.topology.cluster import Topology
from ddpsim.topology.processes import lab_topology
from ddpsim.topology.spec import load_topology

MBIT = 1e6 / 8


def test_a_flat_lab_has_one_switch_and_half_the_delay_on_each_cable() -> None:
    network = lab_network(lab_topology(4, 1000 * MBIT, 0.2e-3))
    assert [host.ranks for host in network.hosts] == [(0,), (1,), (2,), (3,)]
    assert len(network.switches) == 1
    assert network.is_tree
    assert network.offered_rate() == pytest.approx(4000 * MBIT)
    for pair, route in network.routes.items():
        assert len(route) == 2, pair
        assert sum(network.wires[i].delay_s for i in route) == pytest.approx(0.2e-3)


def test_a_slow_link_is_slow_in_both_directions_and_alone() -> None:
    network = lab_network(lab_topology(3, 1000 * MBIT, slow=(1, 200 * MBIT)))
    slow = {(wire.source, wire.target) for wire in network.wires if wire.rate == pytest.approx(200 * MBIT)}
    assert slow == {("node1", network.switches[0]), (network.switches[0], "node1")}


def test_topology_of_the_simulator_and_the_lab_agree_on_every_route() -> None:
    topology = lab_topology(4, 1000 * MBIT, 1e-3, trunk=300 * MBIT)
    network, placement = lab_network(topology), topology.place()
    assert network.is_tree
    for (source, target), route in network.routes.items():
        links = placement.network_route((source, "nic0"), (target, "nic0"))
        assert [network.wires[i].rate for i in route] == [link.bandwidth for link in links]
        assert [network.wires[i].delay_s for i in route] == [link.latency_s for link in links]


@pytest.mark.parametrize(("ranks", "slow"), [(1, None), (4, 4), (4, -1)])
def test_a_lab_that_cannot_be_is_refused(ranks: int, slow: int | None) -> None:
    with pytest.raises(TopologyError, match=str(ranks)):
        lab_topology(ranks, MBIT, slow=None if slow is None else (slow, MBIT))


@pytest.mark.parametrize(
    ("machine", "nodes", "words"), [("dgx-a100", 1, "8 NICs; .* summed rate"), ("8xrtx4090", 1, "0 NICs; give it one")]
)
def test_nodes_of_other_than_one_card_are_refused_on_one_node_too(machine: str, nodes: int, words: str) -> None:
    with pytest.raises(TopologyError, match=words):
        lab_network(load_topology(machine), nodes)


def test_hosts_that_cannot_reach_each_other_are_named() -> None:
    hosts = (Host("a", (0,)), Host("b", (1,)))
    with pytest.raises(TopologyError, match="b cannot reach a"):
        LabNetwork(hosts, (), (LinkDirection("a", "b", 1e6),))


def test_a_ring_of_switches_is_no_tree() -> None:
    ends = [("a", "s"), ("b", "t"), ("s", "t"), ("t", "u"), ("u", "s")]
    wires = [LinkDirection(x, y, 1e6) for pair in ends for x, y in (pair, pair[::-1])]
    hosts = (Host("a", (0,)), Host("b", (1,)))
    assert not LabNetwork(hosts, ("s", "t", "u"), tuple(wires)).is_tree


def test_headers_are_four_and_a_half_percent_of_a_long_stream() -> None:
    assert wire_bytes(25 << 20) / (25 << 20) == pytest.approx(1514 / 1448, rel=1e-4)
    assert wire_bytes(1) == 67


@pytest.mark.parametrize(
    ("name", "topology"),
    [
        ("lab-flat", lab_topology(4, 1000 * MBIT, 0.2e-3)),
        ("lab-slow-link", lab_topology(4, 1000 * MBIT, slow=(2, 250 * MBIT))),
        ("lab-trunk", lab_topology(4, 1000 * MBIT, trunk=500 * MBIT)),
    ],
)
def test_a_shipped_lab_is_what_the_words_say(name: str, topology: Topology) -> None:
    assert load_topology(name).fingerprint() == topology.fingerprint()
