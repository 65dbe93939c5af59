"""Kinds of cards: one table that routes, constants and doubts agree with, and what is asked of fast Ethernet."""

import pytest

from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.nccl.layout import Layout
from ddpsim.collectives.nccl.transport import NcclTransport
from ddpsim.collectives.nccl.versions import CURRENT
from ddpsim.common.errors import TopologyError
from ddpsim.common.units import GIB
from ddpsim.prediction.doubts.spreads import COLLECTIVES
from ddpsim.topology.file_advice import file_advice
from ddpsim.topology.graph import Topology
from ddpsim.topology.hardware import NIC_KINDS
from ddpsim.topology.paths import find_paths
from ddpsim.topology.spec import parse_topology

PRIORS = Calibration.priors("nccl").constants


def two_nodes(kind: str, rate: str = "200Gb/s", gpu: str = "A100", more: str = "") -> Topology:
    return parse_topology(
        f"name: x\nnodes: 2\nnode:\n  gpus: {{count: 2, model: {gpu}}}\n"
        "  nvlink: {pairs: [[0, 1, 4]]}\n"
        "  pcie: {generation: 4, switches: [{gpus: [0, 1], nics: [0]}]}\n"
        f"  nics: [{{rate: {rate}, kind: {kind}{more}}}]\n",
        "x.yaml",
    )


def gib_s(machine: Topology) -> float:
    return NcclTransport(Layout(machine.place(), CURRENT)).allreduce_s(GIB)


@pytest.mark.parametrize("kind", NIC_KINDS.values(), ids=lambda kind: kind.name)
def test_routes_constants_and_doubts_know_every_kind(kind) -> None:
    machine = two_nodes(kind.name)
    template = machine.groups[0].template
    assert find_paths(template)["gpu0", "nic0"].through_host is not kind.gpudirect
    assert template.nics[0].in_order is kind.in_order
    assert kind.family in COLLECTIVES
    assert kind.share is None or f"nccl.nic.share.{kind.share}" in PRIORS
    assert Layout(machine.place(), CURRENT).nic_share == kind.share
    assert [Layout(machine.place(2, ranks), CURRENT).lone for ranks in (1, 2)] == [kind.lone, False]
    assert kind.source


def test_every_share_belongs_to_a_kind() -> None:
    shares = {name.removeprefix("nccl.nic.share.") for name in PRIORS if name.startswith("nccl.nic.share.")}
    assert shares == {kind.share for kind in NIC_KINDS.values()} - {None}


def test_ethernet_is_tcp_until_it_is_said_to_be_roce() -> None:
    assert gib_s(two_nodes("ethernet")) == gib_s(two_nodes("tcp"))
    assert gib_s(two_nodes("roce")) == gib_s(two_nodes("infiniband"))
    assert gib_s(two_nodes("ethernet")) > 1.5 * gib_s(two_nodes("roce"))


@pytest.mark.parametrize(("kind", "threads"), [("tcp", 1), ("ethernet", 1), ("ena", 2), ("gvnic", 4)])
def test_sockets_fill_a_slow_port_and_carry_of_a_fast_one_what_their_threads_move(kind: str, threads: int) -> None:
    rates = (1, 10, 25, 40, 80, 100, 160, 200)
    times = [gib_s(two_nodes(kind, f"{rate}Gb/s")) for rate in rates]
    most = 8 * threads * PRIORS["nccl.socket.thread"].value / 1e9
    filled = [two_nodes("infiniband", f"{min(rate, most)}Gb/s", more=", gpudirect: false") for rate in rates]
    assert times == pytest.approx([gib_s(machine) for machine in filled], rel=1e-6)
    assert sorted(times, reverse=True) == pytest.approx(times)


def test_a_gpu_without_peer_to_peer_has_no_gpudirect_whatever_the_card() -> None:
    machine = two_nodes("infiniband", gpu="RTX4090")
    assert not machine.groups[0].template.nics[0].gpudirect


@pytest.mark.parametrize(
    ("kind", "rate", "lines"),
    [("ethernet", "100Gb/s", 1), ("ethernet", "25Gb/s", 0), ("tcp", "200Gb/s", 0), ("roce", "200Gb/s", 0)],
)
def test_fast_ethernet_is_asked_about_and_nothing_else(kind: str, rate: str, lines: int) -> None:
    advice = file_advice(two_nodes(kind, rate), network=True)
    assert len(advice) == lines
    for line in advice:
        assert "1 card of 12.5GB/s" in line
        assert "kind: roce" in line
        assert "kind: tcp" in line


def test_an_unknown_kind_is_refused_with_the_nearest() -> None:
    with pytest.raises(TopologyError, match=r"nics.0.kind.*unknown kind of NIC 'infinband'; did you mean infiniband"):
        two_nodes("infinband")
