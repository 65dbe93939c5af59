from __future__ import annotations

from dataclasses import replace

import pytest

from ddpsim.collectives.nccl_versions import LL, LL128, NVLS_TREE, RING, SIMPLE, TREE, release
from ddpsim.collectives.tuning import Shape, best, ll_max, table, time_us, tree_max

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


TWO_H100 = replace(TWO_A100, channel_bandwidth=48.0, tree_bandwidth=48.0, sm=90, nvls=True)


def test_lines_of_older_releases_worked_by_hand() -> None:
    old = replace(TWO_A100, tree_bandwidth=48.0, nic_latency_us=0.0, version=2008)
    # 28 inner hops, by LL 1.8 times as long as inside one node; a quarter of 192 GB/s, but 39 between Intel's hosts.
    assert entry(old, RING, LL) == pytest.approx((3.6 + 28 * 0.47 * 1.8 + 2 * 2.7, 39 * 16 / 30))
    # Two nodes: the bandwidth inside them, 235 in all on Ampere, 22.5 a channel.
    assert entry(old, TREE, SIMPLE) == pytest.approx((2 * (7 * 28 + 28), 8 * 22.5 / 2))
    assert entry(old, TREE, LL128)[1] == pytest.approx(8 * 16.9 / 2)
    newer = replace(old, version=2012)
    assert entry(newer, RING, SIMPLE)[0] == pytest.approx(8.4 + 26 * 3.4 + 4 * 28)
    assert entry(newer, TREE, SIMPLE)[1] == pytest.approx(8 * 23.6 / 2)
    assert entry(replace(newer, version=2019), TREE, SIMPLE)[0] == pytest.approx(2 * (7 * 28 + 28))


@pytest.mark.parametrize(
    ("version", "nodes", "latency_us", "bandwidth"),
    [
        # 2.23 and later: 57.7 GB/s a channel on two nodes, 45.5 on more; 25 us, and a hop of 14 with twice the NIC's.
        (2030, 2, 25 + 2 * 15.2, 8 * 57.7 * 16 / 30),
        (2030, 4, 25 + 4 * 15.2, 8 * 45.5 * 32 / 62),
        # Before: five sixths of the slower of both sides, the network's halved beyond two nodes.
        (2019, 2, 23 + 2 * 15.2, 8 * 48 * 5 / 6),
        (2019, 4, 23 + 4 * 15.2, 8 * 24 * 5 / 6),
    ],
)
def test_in_switch_trees_between_nodes(version: int, nodes: int, latency_us: float, bandwidth: float) -> None:
    shape = replace(TWO_H100, ranks=8 * nodes, nodes=nodes, version=version)
    assert entry(shape, NVLS_TREE, SIMPLE) == pytest.approx((latency_us, bandwidth))


def test_a_simple_rings_plateau_begins_at_4_kib_a_rank_before_2_23() -> None:
    shape = replace(TWO_A100, version=2019)
    simple = next(e for e in table(shape) if (e.algorithm, e.protocol) == (RING, SIMPLE))
    for size, factor in ((65535, 1.0), (65536, 1.9)):
        expected = factor * simple.latency_us + size / 1000 / simple.bandwidth
        assert time_us(simple, shape, size) == pytest.approx(expected)


def test_versions_between_two_known_ones_have_the_older_ones_constants() -> None:
    assert [release(v).first for v in (2003, 2005, 2010, 2011, 2013, 2022, 2023, 2030)] == [
        2005,
        2005,
        2005,
        2011,
        2013,
        2013,
        2023,
        2023,
    ]


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


def test_a_large_simple_ring_over_nodes_pays_more_latency() -> None:
    simple = next(e for e in table(TWO_A100) if (e.algorithm, e.protocol) == (RING, SIMPLE))
    size = 1 << 20
    assert time_us(simple, TWO_A100, size) == pytest.approx(1.4 * simple.latency_us + size / 1000 / simple.bandwidth)


def test_a_trees_bandwidth_is_corrected_by_size_as_nccls_table_says() -> None:
    found = next(e for e in table(TWO_A100) if (e.algorithm, e.protocol) == (TREE, LL128))
    for place, factor in ((15, 0.6), (16, 0.8), (17, 0.9), (20, 0.9), (21, 1.0), (22, 1.0)):
        size = 64 << place
        corrected_us = found.latency_us + size / 1000 / (found.bandwidth * factor)
        assert time_us(found, TWO_A100, size) == pytest.approx(corrected_us)


@pytest.mark.parametrize(
    ("nodes", "sm", "host", "expected"),
    [
        (1, 70, {}, 39.0),
        (1, 80, {"amd": True}, 87.7),
        (2, 70, {"amd": True}, 22.5),
        (2, 80, {}, 39.0),
        (2, 90, {}, 39.0),
        (3, 90, {"mixed": True}, 19.0),
    ],
)
def test_ll_goes_no_further_than_the_gpu_allows_inside_and_the_host_between_nodes(
    nodes: int, sm: int, host: dict[str, bool], expected: float
) -> None:
    assert ll_max(Shape(8 * nodes, nodes, 8, 24.0, 24.0, sm=sm, nvlink=True, **host)) == expected
