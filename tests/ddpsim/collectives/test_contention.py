"""What meets on one link shares it: collectives, channels on one card, and two kinds of traffic on a PCIe switch."""

from __future__ import annotations

from itertools import pairwise

import pytest

from ddpsim.collectives.execute import Collectives
from ddpsim.collectives.nccl.transport import NcclTransport
from ddpsim.common.units import MIB
from ddpsim.topology.spec import parse_topology
from tests.ddpsim.collectives.groups import group_on

SWITCHED = """
name: x
node:
  gpus: {count: 4, model: A100}
  nvswitch: {links_per_gpu: 12, bandwidth: 20GB/s}
  pcie: {generation: 5, switches: [{socket: 0, gpus: [0, 1, 2, 3], nics: [0]}]}
  cpu: {sockets: 1, vendor: intel, model: skylake}
  nics: [{count: 1, rate: RATE, kind: infiniband, gpudirect: true}]
fabric: {kind: flat}
"""
PCIE = """
name: x
node:
  gpus: {count: 4, model: T4}
  pcie:
    generation: 3
    switches: [{socket: 0, gpus: [0, 1]ON_SWITCH}, {socket: 0, gpus: [2, 3]}]
    slots: [ON_SOCKET]
  cpu: {sockets: 1, vendor: amd, model: rome}
  nics: [{count: 1, rate: 400Gb/s, kind: infiniband, gpudirect: false}]
fabric: {kind: flat}
"""
SIZE = 256 * MIB


def collectives(text: str, fidelity: str = "flow", nodes: int = 2) -> Collectives:
    placement = parse_topology(text, "x").place(nodes)
    return group_on(placement, fidelity=fidelity, algorithm="ring")


def load_on(each: Collectives, link: str) -> float:
    """Return the bytes that all channels of a ring put on a link for each byte of the message."""
    assert isinstance(each.transport, NcclTransport)
    return sum(load.bytes for load in each.transport.layout.ring.loads if load.link.name == link)


@pytest.mark.parametrize("fidelity", ["flow", "steps"])
@pytest.mark.parametrize("nodes", [1, 2])
def test_two_collectives_at_once_take_the_time_of_both_after_one_another(fidelity: str, nodes: int) -> None:
    text = SWITCHED.replace("RATE", "100Gb/s")
    alone = collectives(text, fidelity, nodes)
    alone_s = alone.simulate_s(SIZE)
    both = collectives(text, fidelity, nodes)
    for event in [both.allreduce(SIZE), both.allreduce(SIZE)]:
        both.env.run(event)
    # Before the first step, while ranks copy into buffers of their own, the other has the links.
    assert both.env.now == pytest.approx(2 * alone_s - alone.transport.allreduce(SIZE).latency_s, rel=0.02)


@pytest.mark.parametrize("fidelity", ["flow", "steps"])
def test_all_channels_of_one_card_share_its_rate(fidelity: str) -> None:
    rates = {"100Gb/s": 12.5e9, "50Gb/s": 6.25e9, "25Gb/s": 3.125e9}
    times = []
    for text, rate in rates.items():
        each = collectives(SWITCHED.replace("RATE", text), fidelity)
        assert each.choice(SIZE).channels > 1
        assert load_on(each, "node0/nic0>network") == pytest.approx(2 * 7 / 8)
        wire_s = SIZE * 2 * 7 / 8 / (rate * each.calibration["nccl.efficiency.net.simple"])
        times.append(each.simulate_s(SIZE))
        assert times[-1] == pytest.approx(wire_s, rel=0.03)
    assert all(slower == pytest.approx(2 * faster, rel=0.03) for faster, slower in pairwise(times))


@pytest.mark.parametrize("fidelity", ["flow", "steps"])
def test_traffic_to_the_card_and_to_other_gpus_shares_a_switchs_way_up(fidelity: str) -> None:
    # Without GPUDirect a card's bytes rest in host memory. On the GPUs' switch they pass its way up beside what gpu1
    # sends to gpu2; in a slot of its own the card leaves that way to the GPUs.
    on_switch = PCIE.replace("ON_SWITCH", ", nics: [0]").replace("ON_SOCKET", "")
    on_socket = PCIE.replace("ON_SWITCH", "").replace("ON_SOCKET", "{socket: 0, nics: [0]}")
    shared, own = (collectives(text, fidelity) for text in (on_switch, on_socket))
    assert load_on(shared, "node0/pcie0>cpu0") == pytest.approx(2 * 2 * 7 / 8)
    assert load_on(own, "node0/pcie0>cpu0") == pytest.approx(2 * 7 / 8)
    assert shared.simulate_s(SIZE) == pytest.approx(2 * own.simulate_s(SIZE), rel=0.02)
