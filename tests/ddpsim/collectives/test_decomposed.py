"""Blink's packed trees and BlueConnect's levels, held to closed forms, with NCCL's own rings beside them."""

from __future__ import annotations

import networkx as nx
import pytest

from ddpsim.collectives.level_schedules import level_sizes
from ddpsim.collectives.patterns import pack_trees
from ddpsim.common.errors import TopologyError
from ddpsim.common.units import MIB
from ddpsim.topology.graph import Placement
from ddpsim.topology.spec import load_topology, parse_topology
from tests.ddpsim.collectives.closed_forms import decomposed_s
from tests.ddpsim.collectives.groups import group_on
from tests.ddpsim.collectives.test_patterns import SWITCHED

LARGE = 4096 * MIB


def simulated_s(placement: Placement, algorithm: str, size: int = LARGE) -> float:
    return group_on(placement, algorithm=algorithm).simulate_s(size)


def test_blueconnect_takes_the_closed_form_of_a_switch_in_the_node_and_cards_between() -> None:
    placement = parse_topology(SWITCHED, "switched").place(4, 1)
    get = group_on(placement).calibration
    beta = 1 / (10e9 * get["nccl.efficiency.net.simple"])
    assert simulated_s(placement, "blueconnect") == pytest.approx(decomposed_s([4], LARGE, [0.0], [beta]), rel=0.01)
    # Eight parts share the node's one card, so that a part's byte takes eight times as long there.
    node = parse_topology(SWITCHED, "switched").place(4, 8)
    inside = 1 / (20e9 * get["nccl.efficiency.nvswitch.simple"])
    expected = decomposed_s([8, 4], LARGE, [0.0, 0.0], [inside, 8 * beta])
    assert simulated_s(node, "blueconnect") == pytest.approx(expected, rel=0.01)
    assert simulated_s(node, "blueconnect") == pytest.approx(simulated_s(node, "two-level"), rel=0.01)


@pytest.mark.parametrize("seed", range(6))
def test_as_many_trees_fit_as_links_part_the_root_from_any_other(seed: int) -> None:
    graph = nx.gnp_random_graph(6, 0.6, seed=seed, directed=True)
    links = {ends: 1 + sum(ends) % 2 for ends in graph.edges}
    nx.set_edge_attributes(graph, {ends: {"capacity": count} for ends, count in links.items()})
    root, trees = pack_trees(6, links)

    def cut(source: int) -> int:
        return min(nx.maximum_flow_value(graph, source, target) for target in range(6) if target != source)

    assert len(trees) == cut(root) == max(map(cut, range(6)))
    used: dict[tuple[int, int], int] = {}
    for parents in trees:
        assert parents[root] is None
        hops = [(parent, child) for child, parent in enumerate(parents) if parent is not None]
        assert nx.is_arborescence(nx.DiGraph(hops))
        for ends in hops:
            used[ends] = used.get(ends, 0) + 1
    assert all(count <= links[ends] for ends, count in used.items())


def test_blink_takes_the_closed_form_of_its_trees() -> None:
    placement = load_topology("dgx-1v").place(1, 8)
    get = group_on(placement).calibration
    # Six NVLinks at each V100, all of which a tree comes in by. Sums go up against the direction in which they come
    # down, so that each direction of a link is used twice.
    lane = next(link for link in placement.classes[0].template.links if link.kind == "nvlink")
    rate = 6 * lane.bandwidth / lane.count * get["nccl.efficiency.nvlink.simple"]
    # The pipe is filled and emptied once.
    assert 2 * LARGE / rate <= simulated_s(placement, "blink") <= 2.5 * LARGE / rate


@pytest.mark.parametrize("gpus", [3, 5, 6])
def test_trees_use_links_that_no_ring_does_where_some_are_missing(gpus: int) -> None:
    placement = load_topology("dgx-1v").place(1, gpus)
    ring, blink = (simulated_s(placement, algorithm) for algorithm in ("ring", "blink"))
    assert blink < ring


def test_what_blink_cannot_is_refused() -> None:
    with pytest.raises(TopologyError, match="without NVLinks"):
        simulated_s(parse_topology(SWITCHED, "switched").place(2), "blink")
    one_hop = parse_topology(SWITCHED, "switched").place(1)
    ring, blink = (simulated_s(one_hop, name) for name in ("ring", "blink"))
    assert blink == pytest.approx(ring, rel=0.05)


@pytest.mark.parametrize(
    ("machine", "nodes", "levels"),
    [
        ("8xl40s-pcie", 2, [2, 2, 2, 2]),  # cards of a switch, of a socket, of a node
        ("8xgpu-dual-root", 1, [4, 2]),  # without peer to peer cards of one switch meet at their socket
        ("8xrtx4090-switched", 1, [4, 2]),
        ("4xv100-pcie", 1, [4]),
        ("p3.16xlarge", 1, [8]),  # quads of NVLinks are no groups: each card is joined to one of the other quad too
        ("p3.16xlarge", 4, [8, 4]),
        ("lab-trunk", 4, [2, 2]),  # two nodes under each of two leaf switches
        ("lab-trunk", 3, [3]),  # which three nodes do not fill
        ("gb200-nvl72", 18, [72]),  # a rack is one NVLink domain
        ("gb200-nvl72", 36, [72, 2]),
    ],
)
def test_a_network_has_as_many_levels_as_its_switches(machine: str, nodes: int, levels: list[int]) -> None:
    assert level_sizes(load_topology(machine).place(nodes)) == levels


def test_levels_of_leaf_and_trunk_take_the_closed_form() -> None:
    """Four nodes of one rank each, two under a leaf: over the trunk goes half of the message, of two nodes at once."""
    placement = load_topology("lab-trunk").place(4)
    get = group_on(placement, "gloo").calibration
    share = get["gloo.efficiency.network"]
    # A node's card has 1 Gbit/s; a trunk half of that, which the parts of its two nodes share.
    beta, trunk = 1 / (1.25e8 * share), 2 / (0.625e8 * share)
    found = group_on(placement, "gloo", algorithm="blueconnect").simulate_s(LARGE)
    assert found == pytest.approx(decomposed_s([2, 2], LARGE, [0.0, 0.0], [beta, trunk]), rel=0.02)
    # A ring crosses the trunks with all of its bytes, as two levels of nodes and their one rank would.
    whole = group_on(placement, "gloo", algorithm="blueconnect:4").simulate_s(LARGE)
    assert whole == pytest.approx(decomposed_s([4], LARGE, [0.0], [1 / (0.625e8 * share)]), rel=0.02)


def test_levels_may_be_written_and_must_make_all_ranks() -> None:
    placement = load_topology("8xl40s-pcie").place(1)
    assert simulated_s(placement, "blueconnect:2x2x2") == simulated_s(placement, "blueconnect")
    assert simulated_s(placement, "blueconnect:8") != simulated_s(placement, "blueconnect")
    for text in ("blueconnect:3x2", "blueconnect:ax2", "blueconnect:0"):
        with pytest.raises(TopologyError, match="do not make 8 ranks; the network's own are blueconnect:2x2x2"):
            simulated_s(placement, text)
