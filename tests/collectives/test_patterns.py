from __future__ import annotations

import pytest

from ddpsim.collectives.execute import Collectives
from ddpsim.collectives.patterns import PATTERNS
from ddpsim.collectives.schedules import gather_and_broadcast_s, halving_doubling_s
from ddpsim.errors import TopologyError
from ddpsim.topology.graph import Placement
from ddpsim.topology.spec import load_topology, parse_topology
from ddpsim.units import MIB

SWITCHED = """
name: switched
node:
  gpus: {count: 8, model: V100}
  nvswitch: {links_per_gpu: 1, bandwidth: 20GB/s}
  pcie: {generation: 3, switches: [{socket: 0, gpus: [0, 1, 2, 3, 4, 5, 6, 7], nics: [0]}]}
  cpu: {sockets: 1, vendor: intel, model: skylake}
  nics: [{count: 1, rate: 80Gb/s, kind: infiniband}]
fabric: {kind: flat}
"""


def collectives(placement: Placement, algorithm: str, fidelity: str = "flow") -> Collectives:
    return Collectives(None, placement, backend="nccl", algorithm=algorithm, fidelity=fidelity)


def test_large_messages_take_the_closed_forms_on_a_switch() -> None:
    placement = parse_topology(SWITCHED, "switched").place(1)
    doubling = collectives(placement, "halving-doubling")
    beta = 1 / (20e9 * doubling.calibration["nccl.efficiency.nvswitch.simple"])
    size = 4096 * MIB
    assert doubling.simulate_s(size) == pytest.approx(halving_doubling_s(8, size, 0.0, beta), rel=0.01)
    naive = collectives(placement, "gather-broadcast").simulate_s(size)
    assert naive == pytest.approx(gather_and_broadcast_s(8, size, 0.0, beta), rel=0.01)


@pytest.mark.parametrize("algorithm", PATTERNS)
def test_flow_agrees_with_steps(algorithm: str) -> None:
    placement = load_topology("dgx-1v").place(2)
    for size in (65536, 256 * MIB):
        flow = collectives(placement, algorithm).simulate_s(size)
        assert flow == pytest.approx(collectives(placement, algorithm, "steps").simulate_s(size), rel=0.12)


def test_two_levels_beat_sending_all_to_one_and_halving_beats_the_ring_for_small_messages() -> None:
    placement = load_topology("dgx-1v").place(4)
    times = {name: collectives(placement, name).simulate_s(64 * MIB) for name in PATTERNS}
    assert times["two-level"] < times["gather-broadcast"] / 4
    switched = parse_topology(SWITCHED, "switched").place(4)
    small = {name: collectives(switched, name).simulate_s(1024) for name in ("halving-doubling", "ring", "two-level")}
    assert small["halving-doubling"] < small["two-level"]


def test_limits_are_named() -> None:
    with pytest.raises(TopologyError, match="two-level on one node"):
        collectives(load_topology("dgx-1v").place(1), "two-level")
    with pytest.raises(TopologyError, match="halving-doubling on 512 ranks; 256 at most"):
        collectives(load_topology("dgx-1v").place(64), "halving-doubling")
