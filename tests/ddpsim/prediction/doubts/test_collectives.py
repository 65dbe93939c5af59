"""How far off an allreduce is: by family of transports, or by the machine's own measurements."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from ddpsim import Calibration, load_topology
from ddpsim.collectives.bands import band_factors
from ddpsim.common.units import MIB
from ddpsim.prediction.doubts.collectives import RACK, band, factors, family
from ddpsim.prediction.doubts.spreads import COLLECTIVES

START = Calibration.priors("nccl")
FITTED = replace(START, fitted_names=("nccl.efficiency.nvlink.simple",), covariance=((0.01,),))
FAMILIES = {
    ("dgx-1v", 1): "NVLink", ("dgx-a100", 1): "NVSwitch", ("4x1080ti-pcie", 1): "PCIe through host memory",
    ("dgx-a100", 2): "InfiniBand or RoCE", ("p5.48xlarge", 2): "EFA", ("gh200-quad", 2): "Slingshot",
    ("p3.16xlarge", 2): "TCP", ("p3dn.24xlarge", 2): "PCIe through host memory",
}  # fmt: skip


@pytest.mark.parametrize(("machine", "nodes"), FAMILIES)
def test_a_machine_is_of_the_family_that_its_errors_go_with(machine: str, nodes: int) -> None:
    assert family(load_topology(machine).place(nodes), "nccl") == FAMILIES[machine, nodes]


def test_gloo_is_tcp_and_one_rank_has_no_doubt() -> None:
    machine = load_topology("dgx-a100")
    assert family(machine.place(1), "gloo") == "TCP"
    assert factors(machine.place(1, 1), "nccl", None, [MIB]) == [(1.0, 1.0)]


def test_what_nobody_measured_has_the_spread_of_its_family() -> None:
    by_latency, by_bandwidth = COLLECTIVES["NVSwitch"]
    placement = load_topology("dgx-a100").place(1)
    for calibration in (None, START):
        small, large = factors(placement, "nccl", calibration, [1024, 1024 * MIB])
        assert small == pytest.approx((math.exp(by_latency.low), math.exp(by_latency.high)))
        assert large == pytest.approx((math.exp(by_bandwidth.low), math.exp(by_bandwidth.high)))


def test_a_calibration_inside_a_node_says_nothing_of_the_network() -> None:
    machine, sizes = load_topology("dgx-1v"), [MIB, 256 * MIB]
    inside = machine.place(1)
    assert factors(inside, "nccl", FITTED, sizes) == band_factors(inside, FITTED, sizes)
    across = machine.place(2)
    network = COLLECTIVES["InfiniBand or RoCE"][1]
    own = band_factors(across, FITTED, sizes)
    for (low, high), (own_low, own_high) in zip(factors(across, "nccl", FITTED, sizes), own, strict=True):
        assert math.log(low) == pytest.approx(-math.hypot(network.low, math.log(own_low)))
        assert math.log(high) == pytest.approx(math.hypot(network.high, math.log(own_high)))


def test_a_size_between_has_the_band_of_the_nearest() -> None:
    placement = load_topology("dgx-a100").place(1)
    wire = band(placement, "nccl", None, [1024, 1024 * MIB], "auto")
    assert wire.high(2048) == wire.high(1024) > wire.high(900 * MIB)


def test_only_nodes_that_nvlink_joins_are_of_the_family_of_racks() -> None:
    rack = load_topology("gb200-nvl72")
    assert [family(rack.place(nodes), "nccl") for nodes in (1, 2, 36)] == ["NVSwitch", RACK, RACK]
    for name in ("p3.16xlarge", "dgx-h100"):
        machine = load_topology(name)
        assert RACK not in {family(machine.place(2), "nccl") for _ in range(2)}
