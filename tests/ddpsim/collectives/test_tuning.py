from __future__ import annotations

import math
from dataclasses import replace

import pytest

from ddpsim.collectives.nccl.shape import InSwitch, Shape
from ddpsim.collectives.nccl.transport import operation_table
from ddpsim.collectives.nccl.tuning import best, ll_max, table, time_us, tree_max
from ddpsim.collectives.nccl.versions import LL, LL128, NVLS, NVLS_TREE, RING, SIMPLE, TREE
from ddpsim.common.operation import Operation

DGX1V = Shape(ranks=8, nodes=1, channels=6, channel_bandwidth=20.0, tree_bandwidth=20.0, sm=70, nvlink=True)
TWO_A100 = Shape(
    ranks=16, nodes=2, channels=8, channel_bandwidth=24.0, tree_bandwidth=24.0, sm=80, nvlink=True, nic_latency_us=0.6
)


def entry(shape: Shape, algorithm: str, protocol: str) -> tuple[float, float]:
    found = next(e for e in table(shape) if (e.algorithm, e.protocol) == (algorithm, protocol))
    return found.latency_us, found.bandwidth


def test_lines_worked_by_hand() -> None:
    # 8.4 us and 14 NVLink hops of 3.4; 120 GB/s of channels over 2(p-1)/p.
    assert entry(DGX1V, RING, SIMPLE) == pytest.approx((8.4 + 14 * 3.4, 120 * 8 / 14))
    # LL: half the bandwidth, but no more than 39 on Volta.
    assert entry(DGX1V, RING, LL) == pytest.approx((6.6 + 14 * 0.6, 39 * 8 / 14))
    # Tree: 0.92 of 120, seven ninths of it on one node, halved; 14 hops of 1.25.
    assert entry(DGX1V, TREE, LL128) == pytest.approx((14 + 14 * 1.25, 0.92 * 120 * 7 / 9 / 2))
    # Two nodes: 28 inner hops, 2 outer ones of 14 us and twice the NIC's 0.6.
    assert entry(TWO_A100, RING, SIMPLE) == pytest.approx((8.4 + 28 * 3.4 + 2 * 15.2, 192 * 16 / 30))


@pytest.mark.parametrize(
    ("operation", "hops", "steps"),
    [(Operation.REDUCE_SCATTER, 7, 7), (Operation.BROADCAST, 1, 8), (Operation.REDUCE, 1, 8)],
)
def test_other_operations_take_half_the_hops_or_one(operation: Operation, hops: int, steps: int) -> None:
    found = next(e for e in operation_table(DGX1V, operation) if e.protocol == SIMPLE)
    assert (found.latency_us, found.bandwidth) == pytest.approx((8.4 + hops * 3.4, 120 * 8 / steps))


VOLTA_2008 = replace(DGX1V, version=2008)
VOLTA_PCI = Shape(8, 1, 1, 12.0, 12.0, sm=70, nvlink=False)
TWO_2008 = replace(TWO_A100, version=2008, nic_latency_us=0.0)
TWO_AMD = replace(TWO_A100, amd=True)
H100_16 = Shape(8, 1, 16, 22.0, 44.0, sm=90, nvlink=True, nvls=InSwitch(16, 22.0, 44.0))
B200 = Shape(8, 1, 16, 80.0, 90.0, sm=100, nvlink=True, nvls=InSwitch(16, 80.0, 180.0))


def across(nodes: int, sm: int, **more: object) -> Shape:
    """Return nodes of eight whose links are faster than any constant of NCCL's."""
    return Shape(8 * nodes, nodes, 8, 1000.0, 1000.0, sm=sm, nvlink=True, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("shape", "algorithm", "protocol", "latency_us"),
    [
        # One node of eight: 14 hops, by version and kind of hop.
        (DGX1V, RING, LL, 6.6 + 14 * 0.6),
        (DGX1V, RING, LL128, 14 + 14 * 1.9),
        (DGX1V, TREE, LL, 6.8 + 14 * 0.6),
        (DGX1V, TREE, SIMPLE, 8.4 + 14 * 4),
        (VOLTA_2008, RING, LL, 3.6 + 14 * 0.47),
        (VOLTA_2008, RING, LL128, 10 + 14 * 1.9),
        (VOLTA_2008, RING, SIMPLE, 8.4 + 14 * 3.4),
        (VOLTA_2008, TREE, LL, 4.4 + 14 * 0.52),
        (VOLTA_2008, TREE, LL128, 4.4 + 14 * 1.25),
        (VOLTA_2008, TREE, SIMPLE, 14 * 28),
        (VOLTA_PCI, RING, LL, 6.6 + 14 * 1.0),
        (VOLTA_PCI, RING, LL128, 14 + 14 * 2.5),
        (VOLTA_PCI, RING, SIMPLE, 8.4 + 14 * 5.7),
        (VOLTA_PCI, TREE, LL, 6.8 + 14 * 1.0),
        (VOLTA_PCI, TREE, LL128, 14 + 14 * 1.9),
        (VOLTA_PCI, TREE, SIMPLE, 8.4 + 14 * 4),
        (replace(VOLTA_PCI, version=2008), RING, LL, 3.6 + 14 * 1.0),
        (replace(VOLTA_PCI, version=2008), RING, LL128, 10 + 14 * 2.5),
        (replace(VOLTA_PCI, version=2008), RING, SIMPLE, 8.4 + 14 * 5.7),
        (replace(VOLTA_PCI, version=2008), TREE, LL, 4.4 + 14 * 1.0),
        (replace(VOLTA_PCI, version=2008), TREE, LL128, 4.4 + 14 * 1.9),
        (replace(VOLTA_PCI, version=2008), TREE, SIMPLE, 14 * 28),
        # Two nodes: 28 hops inside, at least an overhead by processor; 2 between, by version.
        (TWO_A100, RING, LL, 6.6 + 28 * 1 + 2 * 3.3),
        (TWO_AMD, RING, LL, 6.6 + 28 * 2 + 2 * 3.3),
        (TWO_AMD, RING, SIMPLE, 8.4 + 28 * 6 + 2 * 15.2),
        (TWO_A100, RING, LL128, 14 + 28 * 1.9 + 2 * 4.6),
        (TWO_A100, TREE, LL, 6.8 + 14 * 0.6 + 2 * 5.6),
        (TWO_A100, TREE, LL128, 14 + 14 * 1.25 + 2 * 9.1),
        (TWO_A100, TREE, SIMPLE, 8.4 + 14 * 4 + 2 * 15.2),
        (TWO_2008, RING, LL, 3.6 + 28 * 0.47 * 1.8 + 2 * 2.7),
        (TWO_2008, RING, SIMPLE, 8.4 + 28 * 3.4 + 2 * 9.6),
        (TWO_2008, RING, LL128, 10 + 28 * 1.9 + 2 * 4),
        (TWO_2008, TREE, LL, 4.4 + 14 * 0.52 * 1.8 + 2 * 5),
        (TWO_2008, TREE, LL128, 4.4 + 14 * 1.25 + 2 * 8.5),
        (TWO_2008, TREE, SIMPLE, 14 * 28 + 2 * 50),
        # Five nodes: two levels of trees.
        (across(5, 80), TREE, LL, 6.8 + 14 * 0.6 + 2 * 2 * 5),
    ],
)
def test_documented_latencies_by_version_and_kind_of_hop(
    shape: Shape, algorithm: str, protocol: str, latency_us: float
) -> None:
    assert entry(shape, algorithm, protocol)[0] == pytest.approx(latency_us)


@pytest.mark.parametrize(
    ("sm", "trees", "trees_ll128", "ring_ll128"),
    [
        (70, (26.5, 18.5, 10.0), (20.0, 20.0, 20.0), 20.0),
        (80, (24.0, 23.6, 17.8), (20.0, 20.0, 20.0), 20.0),
        (90, (38.7, 41.4, 36.0), (36.7, 36.7, 29.0), 36.7),
        (100, (70.0, 42.8, 24.0), (55.6, 31.67, 20.0), 40.0),
    ],
)
def test_documented_bandwidths_of_a_channel_by_architecture_and_nodes(
    sm: int, trees: tuple[float, ...], trees_ll128: tuple[float, ...], ring_ll128: float
) -> None:
    for nodes, tree, most in zip((1, 2, 3), trees, trees_ll128, strict=True):
        shape = across(nodes, sm)
        payload = 7 / 9 if nodes == 1 else 120 / 128
        assert entry(shape, TREE, SIMPLE)[1] == pytest.approx(8 * tree / 2)
        assert entry(shape, TREE, LL128)[1] == pytest.approx(8 * min(tree * payload, most) / 2)
        assert entry(shape, RING, LL128)[1] == pytest.approx(8 * ring_ll128 * shape.ranks / (2 * (shape.ranks - 1)))


def test_documented_shares_of_ll_trees_and_switches() -> None:
    # LL takes half of the channels' bandwidth, a quarter in 2.8; a tree of one GPU a node 0.85 of any other.
    slow = Shape(8, 1, 2, 12.0, 12.0, sm=80, nvlink=True)
    assert entry(slow, RING, LL)[1] == pytest.approx(24 / 2 * 8 / 14)
    assert entry(replace(slow, version=2008), RING, LL)[1] == pytest.approx(24 / 4 * 8 / 14)
    assert entry(slow, TREE, LL)[1] == pytest.approx(0.92 * 24 / 3.8 / 2)
    assert entry(Shape(4, 4, 2, 12.0, 12.0, sm=80, nvlink=True), TREE, SIMPLE)[1] == pytest.approx(0.85 * 0.92 * 24 / 2)
    for shape, efficiency in ((H100_16, 0.85), (B200, 0.74)):
        bus = 16 * shape.channel_bandwidth * efficiency * 15 / 16 * 2
        assert entry(shape, NVLS, SIMPLE)[1] == pytest.approx(bus * 8 / 14)


@pytest.mark.parametrize(
    ("shape", "size", "factor"),
    [
        (TWO_A100, 1 << 20, 1.4),
        (replace(TWO_A100, sm=70), 1 << 20, 1.9),
        (replace(TWO_A100, sm=70), 1024, 1.0),
        # Before 2.23 the plateau begins at 4 KiB a rank.
        (replace(TWO_A100, version=2019), 65535, 1.0),
        (replace(TWO_A100, version=2019), 65536, 1.9),
    ],
)
def test_a_large_simple_ring_over_nodes_pays_more_latency(shape: Shape, size: int, factor: float) -> None:
    simple = next(e for e in table(shape) if (e.algorithm, e.protocol) == (RING, SIMPLE))
    assert time_us(simple, shape, size) == pytest.approx(factor * simple.latency_us + size / 1000 / simple.bandwidth)


TWO_H100 = replace(TWO_A100, channel_bandwidth=48.0, tree_bandwidth=48.0, sm=90, nvls=InSwitch(8, 40.0, 48.0))


def test_lines_of_older_releases_worked_by_hand() -> None:
    oldest = replace(TWO_A100, tree_bandwidth=48.0, nic_latency_us=0.0, version=2008)
    # 28 inner hops, by LL 1.8 times as long as inside one node; a quarter of 192 GB/s.
    assert entry(oldest, RING, LL) == pytest.approx((3.6 + 28 * 0.47 * 1.8 + 2 * 2.7, 192 / 4 * 16 / 30))
    # Two nodes: the bandwidth inside them, 235 in all on Ampere; no tree has more than 110, by LL128 seven ninths of
    # what a channel's ring has.
    assert entry(oldest, TREE, SIMPLE) == pytest.approx((2 * (7 * 28 + 50), 110 / 2))
    assert entry(oldest, TREE, LL128)[1] == pytest.approx(8 * 16.7 * 7 / 9 / 2)
    four = replace(oldest, ranks=32, nodes=4)
    assert entry(four, TREE, SIMPLE)[1] == pytest.approx(80 / 2)
    assert entry(replace(four, sm=70), TREE, LL128)[1] == pytest.approx(80 * 0.915 / 2)
    old = replace(oldest, version=2009)
    # 39 between Intel's hosts, 22.5 a tree's channel on two nodes.
    assert entry(old, RING, LL)[1] == pytest.approx(39 * 16 / 30)
    assert entry(old, TREE, SIMPLE) == pytest.approx((2 * (7 * 28 + 28), 8 * 22.5 / 2))
    assert entry(old, TREE, LL128)[1] == pytest.approx(8 * 16.9 / 2)
    newer = replace(old, version=2012)
    assert entry(newer, RING, SIMPLE)[0] == pytest.approx(8.4 + 26 * 3.4 + 4 * 28)
    assert entry(newer, TREE, SIMPLE)[1] == pytest.approx(8 * 23.6 / 2)
    assert entry(replace(newer, version=2019), TREE, SIMPLE)[0] == pytest.approx(2 * (7 * 28 + 28))


@pytest.mark.parametrize(
    ("version", "nodes", "latency_us", "bandwidth"),
    [
        # 2.23 and later: 57.7 GB/s a channel on two nodes, 45.5 on more; 25 us, and a hop of 20.9 with twice the NIC's.
        (2030, 2, 25 + 2 * 22.1, 8 * 57.7 * 16 / 30),
        (2030, 4, 25 + 4 * 22.1, 8 * 45.5 * 32 / 62),
        # Before: five sixths of the slower of both sides, the network's halved beyond two nodes.
        (2019, 2, 23 + 2 * 15.2, 8 * 40 * 5 / 6),
        (2019, 4, 23 + 4 * 15.2, 8 * 24 * 5 / 6),
    ],
)
def test_in_switch_trees_between_nodes(version: int, nodes: int, latency_us: float, bandwidth: float) -> None:
    shape = replace(TWO_H100, ranks=8 * nodes, nodes=nodes, version=version)
    assert entry(shape, NVLS_TREE, SIMPLE) == pytest.approx((latency_us, bandwidth))


@pytest.mark.parametrize(
    ("sm", "nodes", "protocol", "channel"),
    [(80, 2, SIMPLE, 23.6), (80, 4, LL128, 17.8), (90, 2, LL128, 36.7), (100, 2, SIMPLE, 42.8), (100, 9, SIMPLE, 24.0)],
)
def test_the_most_a_tree_moves_is_nccls_of_each_channel(sm: int, nodes: int, protocol: str, channel: float) -> None:
    shape = replace(TWO_A100, ranks=8 * nodes, nodes=nodes, sm=sm)
    for version in (2008, 2030):
        assert tree_max(replace(shape, version=version), protocol) == pytest.approx(8 * channel)


def test_latency_protocols_win_small_and_simple_wins_large() -> None:
    assert best(DGX1V, 1024).protocol == LL
    assert best(DGX1V, 1 << 30).protocol == SIMPLE
    assert best(TWO_A100, 1024).algorithm == TREE
    assert best(DGX1V, 1 << 20, RING).algorithm == RING


def test_pcie_machines_and_old_versions_lack_entries() -> None:
    without = Shape(4, 1, 1, 12.0, 12.0, sm=70, nvlink=False, ll128=False)
    assert {e.protocol for e in table(without)} == {LL, SIMPLE}
    ancient = Shape(4, 1, 1, 12.0, 12.0, sm=70, nvlink=False, ll128=False, version=2003)
    assert {e.algorithm for e in table(ancient)} == {RING}


@pytest.mark.parametrize(
    ("protocol", "tenths"),
    [
        (LL, "10 10 10 10 9 8 7 7 7 7 6 5 4 4 5 6 7 8 9 10 10 10 10 10 10"),
        (LL128, "10 10 10 10 10 9 8 8 8 7 6 6 6 6 6 6 8 9 9 9 9 10 10 10 10"),
        (SIMPLE, "9 9 9 9 9 9 9 8 7 6 6 5 5 5 5 6 7 8 7 7 8 9 9 9 10"),
    ],
)
def test_a_trees_bandwidth_is_corrected_by_size_as_nccls_table_says(protocol: str, tenths: str) -> None:
    found = next(e for e in table(TWO_A100) if (e.algorithm, e.protocol) == (TREE, protocol))
    for place, factor in enumerate(map(int, tenths.split())):
        for size in (64 << place, (128 << place) - 1):
            corrected_us = found.latency_us + size / 100 / (found.bandwidth * factor)
            assert time_us(found, TWO_A100, size) == pytest.approx(corrected_us, rel=1e-12)


INTEL, AMD, MIXED = {}, {"amd": True}, {"mixed": True}


@pytest.mark.parametrize(
    ("sm", "host", "by_nodes"),
    [
        (70, INTEL, (39.0, 39.0, 20.4)),
        (70, AMD, (39.0, 22.5, 19.0)),
        (80, INTEL, (87.7, 39.0, 20.4)),
        (80, AMD, (87.7, 22.5, 19.0)),
        (90, INTEL, (141.0, 39.0, 20.4)),
        (90, MIXED, (141.0, 22.5, 19.0)),
        (100, AMD, (141.0, 22.5, 19.0)),
    ],
)
def test_ll_goes_no_further_than_the_gpu_allows_inside_and_the_host_between_nodes(
    sm: int, host: dict[str, bool], by_nodes: tuple[float, ...]
) -> None:
    for nodes, expected in enumerate(by_nodes, 1):
        assert ll_max(across(nodes, sm, **host)) == expected
    assert ll_max(Shape(8 * nodes, nodes, 8, 24.0, 24.0, sm=sm, nvlink=True, **host)) == expected


H100 = Shape(8, 1, 12, 30.0, 30.0, sm=90, nvlink=True, nvls=InSwitch(8, 40.0, 60.0))
FOUR_H100 = Shape(32, 4, 8, 45.0, 45.0, sm=90, nvlink=True, nic_latency_us=0.6, nvls=InSwitch(8, 40.0, 48.0))


def test_in_switch_lines_worked_by_hand() -> None:
    # 0.85 of 40 GB/s both ways, less an eighth, is under the 60 at the ends.
    assert entry(H100, NVLS, SIMPLE) == pytest.approx((25.0, 8 * 40 * 0.85 * 7 / 8 * 2 * 8 / 14))
    assert entry(replace(H100, version=2019), NVLS, SIMPLE) == pytest.approx((23.0, 8 * 40 * 5 / 6))
    assert not any(each.algorithm == NVLS for each in table(FOUR_H100))


def test_blackwells_in_switch_trees_are_corrected_by_size_on_x86_only() -> None:
    shape = replace(FOUR_H100, sm=100)
    found = next(each for each in table(shape) if each.algorithm == NVLS_TREE)
    size = 1 << 20  # 64 << 14: a factor of a half
    plain_us = found.latency_us + size / 1000 / found.bandwidth
    assert time_us(found, replace(shape, x86=False), size) == pytest.approx(plain_us)
    assert time_us(found, shape, size) == pytest.approx(found.latency_us + size / 1000 / (found.bandwidth / 2))


def test_with_one_rank_a_node_a_ring_takes_the_latency_a_tree_takes_between_nodes() -> None:
    single = replace(TWO_A100, ranks=2)
    assert entry(single, RING, LL)[0] == pytest.approx(6.6 + 2 * (5.0 + 0.6))
    assert entry(replace(single, version=2008), RING, LL)[0] == pytest.approx(3.6 + 2 * (2.7 + 0.6))


@pytest.mark.parametrize(
    ("nodes", "mib", "algorithm", "believed_us"),
    [
        (4, 15, TREE, 330),
        (4, 24, RING, 458),
        (4, 32, RING, 560),
        (8, 15, TREE, 348),
        (8, 32, TREE, 645),
        (8, 64, RING, 1128),
    ],
)
def test_nccl_itself_takes_the_ring_on_four_nodes_where_it_takes_the_tree_on_eight(
    nodes: int, mib: int, algorithm: str, believed_us: float
) -> None:
    # DGX A100: eight channels of 24 GB/s, AMD hosts.
    shape = replace(TWO_A100, ranks=8 * nodes, nodes=nodes, tree_bandwidth=30.0, amd=True)
    found = best(shape, mib << 20)
    assert (found.algorithm, found.protocol) == (algorithm, LL128)
    assert time_us(found, shape, mib << 20) == pytest.approx(believed_us, abs=1)


def nccl_2_4_threshold(nodes: int, ranks: int, channels: int, *, nvlink: bool) -> float:
    """Return `ncclTreeThreshold` of NCCL 2.4, line by line."""
    ring_bandwidth = 5000.0 * channels if nvlink else 5000.0
    if nvlink:
        tree_bandwidth = ring_bandwidth * 3 / 4
        if nodes == 2:
            tree_bandwidth *= 2
    else:
        tree_bandwidth = ring_bandwidth * 2 / 3
    levels, count = 0, nodes
    while count := count >> 1:
        levels += 1
    ring_latency, tree_latency = 6.0 * (ranks - 1), 15.0 * levels + 4.0 * (ranks // nodes - 1)
    if nodes < 2 or ring_latency <= tree_latency:
        return 0.0
    if tree_bandwidth > ring_bandwidth:
        return float("inf")
    return ring_bandwidth * tree_bandwidth / (ring_bandwidth - tree_bandwidth) * (ring_latency - tree_latency)


@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 8, 32])
@pytest.mark.parametrize("nvlink", [True, False])
def test_trees_are_taken_up_to_nccl_2_4s_threshold(nodes: int, nvlink: bool) -> None:
    shape = replace(DGX1V, ranks=8 * nodes, nodes=nodes, nvlink=nvlink, version=2004)
    threshold = nccl_2_4_threshold(nodes, shape.ranks, 2 * shape.channels, nvlink=nvlink)
    beside = [] if math.isinf(threshold) else [int(0.999 * threshold), int(1.001 * threshold) + 1]
    for size in filter(None, (1, 10**6, 4 * 10**6, 10**9, *beside)):
        assert best(shape, size).algorithm == (TREE if size <= threshold else RING)
        for forced in (RING, TREE) if nodes > 1 else (RING,):
            assert math.isfinite(time_us(best(shape, size, forced), shape, size))
