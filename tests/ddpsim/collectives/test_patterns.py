from __future__ import annotations

from dataclasses import replace

import pytest

from ddpsim.collectives.calibration import Curve, CurvePoint
from ddpsim.collectives.execute import Collectives
from ddpsim.collectives.patterns import PATTERNS
from ddpsim.common.errors import TopologyError
from ddpsim.common.units import MIB
from ddpsim.topology.graph import Placement
from ddpsim.topology.spec import load_topology, parse_topology
from tests.ddpsim.collectives.closed_forms import halving_doubling_s, parameter_server_s
from tests.ddpsim.collectives.groups import group_on
from tests.ddpsim.collectives.shaped import shaped, switched

SWITCHED = switched(8)


def collectives(placement: Placement, algorithm: str, fidelity: str = "flow", backend: str = "nccl") -> Collectives:
    return group_on(placement, backend, algorithm=algorithm, fidelity=fidelity)


def test_large_messages_take_the_closed_forms_on_a_switch() -> None:
    placement = parse_topology(SWITCHED, "switched").place(1)
    doubling = collectives(placement, "halving-doubling")
    beta = 1 / (20e9 * doubling.calibration["nccl.efficiency.nvswitch.simple"])
    size = 4096 * MIB
    assert doubling.simulate_s(size) == pytest.approx(halving_doubling_s(8, size, 0.0, beta), rel=0.01)
    naive = collectives(placement, "gather-broadcast").simulate_s(size)
    assert naive == pytest.approx(parameter_server_s(8, 1, size, 0.0, beta), rel=0.01)
    # One server beside rank 0 is the naive pattern.
    assert collectives(placement, "parameter-server").simulate_s(size) == pytest.approx(naive)


@pytest.mark.parametrize("fidelity", ["flow", "steps"])
def test_servers_on_every_node_take_the_closed_forms(fidelity: str) -> None:
    size = 4096 * MIB
    single = parse_topology(SWITCHED, "switched").place(8, 1)
    served = collectives(single, "parameter-server", fidelity)
    # An 80 Gb/s card moves 10 GB/s, each node holds an eighth.
    beta = 1 / (10e9 * served.calibration["nccl.efficiency.net.simple"])
    assert served.simulate_s(size) == pytest.approx(parameter_server_s(8, 8, size, 0.0, beta), rel=0.01)
    naive = collectives(single, "gather-broadcast", fidelity).simulate_s(size)
    assert naive == pytest.approx(parameter_server_s(8, 1, size, 0.0, beta), rel=0.01)
    # Two nodes of eight: each server hears from the other node's eight workers, half the message each.
    pair = collectives(parse_topology(SWITCHED, "switched").place(2), "parameter-server", fidelity)
    assert pair.simulate_s(size) == pytest.approx(2 * 8 * size / 2 * beta, rel=0.01)


@pytest.mark.parametrize("fidelity", ["flow", "steps"])
@pytest.mark.parametrize("size", [1024, 64 * MIB])
def test_gloo_patterns_take_the_closed_forms(fidelity: str, size: int) -> None:
    placement = shaped(4, "0.1ms")
    naive = collectives(placement, "gather-broadcast", fidelity, "gloo")
    get = naive.calibration
    beta = 1 / (1.25e8 * get["gloo.efficiency.network"])
    alpha = get["gloo.step_s"] + get["gloo.round_trips"] * 4 * 0.1e-3
    expected = get["gloo.launch_s"] + parameter_server_s(4, 1, size, alpha, beta)
    assert naive.simulate_s(size) == pytest.approx(expected, rel=0.01)
    served = collectives(placement, "parameter-server", fidelity, "gloo").simulate_s(size)
    assert served == pytest.approx(get["gloo.launch_s"] + parameter_server_s(4, 4, size, alpha, beta), rel=0.01)


def test_measured_rows_of_the_backends_own_choice_do_not_correct_a_forced_pattern() -> None:
    placement = shaped(4, "0.1ms")
    start = collectives(placement, "auto", backend="gloo").calibration
    curve = Curve(placement.topology.fingerprint(), 4, 1, (CurvePoint(1024, 1.0), CurvePoint(MIB, 2.0)))
    bent = replace(start, curves=(curve,))
    for algorithm, expected in (("auto", 2.0), ("ring", 2.0), ("gather-broadcast", None)):
        found = group_on(placement, "gloo", calibration=bent, algorithm=algorithm).estimate_s(MIB)
        plain = group_on(placement, "gloo", algorithm=algorithm).estimate_s(MIB)
        assert found == pytest.approx(expected or plain)


@pytest.mark.parametrize("algorithm", PATTERNS)
def test_flow_agrees_with_steps(algorithm: str) -> None:
    placement = load_topology("dgx-1v").place(2)
    for size in (65536, 256 * MIB):
        flow = collectives(placement, algorithm).simulate_s(size)
        assert flow == pytest.approx(collectives(placement, algorithm, "steps").simulate_s(size), rel=0.12)


def test_two_levels_across_many_nodes_by_tree_for_small_messages_by_ring_for_large_ones() -> None:
    switched = parse_topology(SWITCHED, "switched").place(16, 4)
    ring, tree = (collectives(switched, name) for name in ("two-level", "two-level-tree"))
    assert tree.simulate_s(1024) < 0.6 * ring.simulate_s(1024)
    # The busiest card carries 2 S up and down a pair of trees, 2 (n-1)/n S around a ring; a full pipe loses little.
    assert ring.simulate_s(1024 * MIB) < tree.simulate_s(1024 * MIB) < 1.3 * ring.simulate_s(1024 * MIB)


def test_limits_are_named() -> None:
    with pytest.raises(TopologyError, match="two-level on one node"):
        collectives(load_topology("dgx-1v").place(1), "two-level")
    with pytest.raises(TopologyError, match="two-level-tree on one node"):
        collectives(load_topology("dgx-1v").place(1), "two-level-tree")
    with pytest.raises(TopologyError, match="halving-doubling on 512 ranks; 256 at most"):
        collectives(load_topology("dgx-1v").place(64), "halving-doubling")
