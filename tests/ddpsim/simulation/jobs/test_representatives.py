from dataclasses import replace

import numpy as np
import pytest

from ddpsim.simulation.jobs.representatives import RankKind, draw_latest, draw_own
from ddpsim.workload.iteration_profile import paces
from tests.ddpsim.simulation.builders import workload


def kind_of(source, ranks, spread=0.0, **given):
    return RankKind(ranks, source, tuple(paces(source)), spread, **given)


@pytest.mark.parametrize("count", [2, 4, 16, 1000])
def test_the_slowest_of_many_devices_is_the_expected_maximum(count):
    draws = np.random.default_rng(0).normal(0, 0.02, size=(4000, count)).max(axis=1)
    kind = kind_of(workload(), range(count), spread=0.02)
    assert np.log(kind.slowest()) == pytest.approx(draws.mean(), abs=0.0012)


@pytest.mark.parametrize(("spread", "node_spread", "each"), [(0.02, 0.0, 8), (0.0, 0.05, 8), (0.02, 0.05, 1)])
def test_the_slowest_of_devices_on_nodes_that_differ_is_the_expected_maximum(spread, node_spread, each):
    nodes, rng = 16, np.random.default_rng(0)
    draws = rng.normal(0, spread, (4000, nodes, each)) + rng.normal(0, node_spread, (4000, nodes, 1))
    kind = kind_of(workload(), range(nodes * each), spread, node_spread=node_spread, nodes=nodes)
    assert np.log(kind.slowest()) == pytest.approx(draws.max(axis=(1, 2)).mean(), abs=0.002)


def test_both_spreads_together_are_near_the_expected_maximum():
    rng = np.random.default_rng(0)
    draws = (rng.normal(0, 0.0235, (4000, 16, 8)) + rng.normal(0, 0.05, (4000, 16, 1))).max(axis=(1, 2)).mean()
    kind = kind_of(workload(), range(128), 0.0235, node_spread=0.05, nodes=16)
    assert np.log(kind.slowest()) == pytest.approx(draws, rel=0.03)


def test_nodes_differ_where_there_are_several():
    alone, together = (kind_of(workload(device="V100"), range(8), node_spread=0.05, nodes=count) for count in (1, 2))
    assert alone.slowest() == 1
    assert draw_latest(alone, 0, 3) is None
    assert draw_latest(together, 0, 3)(1).forward_work == pytest.approx(0.03 * together.slowest())


def test_ranks_without_jitter_or_spread_need_no_latest():
    one, many = (workload(iterations=n, jitter=0.1) for n in (1, 3))
    assert draw_latest(kind_of(one, range(8)), 0, 5) is None
    assert draw_latest(kind_of(many, range(1)), 0, 5) is None
    assert draw_latest(kind_of(many, range(8)), 0, 5) is not None


def test_a_spread_slows_the_latest_and_not_rank_0():
    kind = kind_of(workload(device="V100"), range(8), spread=0.05)
    assert draw_own(kind, 0, 3)(1).forward_work == pytest.approx(0.03)
    assert draw_latest(kind, 0, 3)(1).forward_work == pytest.approx(0.03 * kind.slowest())
    assert draw_latest(kind, 0, 3)(1).forward_host == pytest.approx(0.003)
    cpu = kind_of(workload(), range(8), spread=0.05)
    assert draw_latest(cpu, 0, 3)(1).forward_host == pytest.approx(0.03 * cpu.slowest())
    half = kind_of(replace(kind.workload, arithmetic_share=0.5), range(8), spread=0.05)
    assert half.slowest() - 1 == pytest.approx((kind.slowest() - 1) / 2)


def test_ranks_of_a_kind_draw_for_themselves_wherever_they_are():
    many = workload(iterations=5, jitter=0.1)
    apart, together = kind_of(many, (0, 4, 6)), kind_of(many, (0, 1, 2))
    six, two = (draw_own(kind_of(many, (rank,)), 3, 9) for rank in (6, 2))
    assert [six(i) for i in range(9)] != [two(i) for i in range(9)]
    assert [draw_latest(apart, 3, 9)(i) for i in range(9)] != [draw_latest(together, 3, 9)(i) for i in range(9)]


@pytest.mark.parametrize("device", ["cpu", "V100"])
def test_local_steps_of_the_latest_add_up_to_the_last_ranks(device):
    cycle, total = 4, 12
    kind = kind_of(workload(device=device, iterations=9, jitter=0.5), range(6))
    last = draw_latest(kind, 0, total, cycle)
    drawn = [draw_own(kind_of(kind.workload, (rank,)), 0, total) for rank in kind.ranks[1:]]
    for begin in range(cycle, total, cycle):
        together = last(begin - 1).optimizer_work + sum(last(k).work_s for k in range(begin, begin + cycle))
        each = [
            own(begin - 1).optimizer_work + sum(own(k).work_s for k in range(begin, begin + cycle)) for own in drawn
        ]
        assert together == pytest.approx(max(each))
