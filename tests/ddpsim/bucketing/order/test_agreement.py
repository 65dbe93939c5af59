from __future__ import annotations

import math
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpsim.bucketing.order.agreement import kendall_tau, order_report, plan_tau, ready_tau
from ddpsim.bucketing.order.arrivals import Arrivals
from tests import strategies


def by_pairs(first, second):
    """Kendall's tau by its definition, pair by pair."""
    common = [i for i in first if i in second]
    signs = [1 if second.index(a) < second.index(b) else -1 for a, b in combinations(common, 2)]
    return sum(signs) / len(signs) if signs else 1.0


@given(st.permutations(range(12)), st.permutations(range(12)), st.integers(0, 12), st.integers(0, 12))
def test_tau_equals_its_definition_over_common_parameters(first, second, some, others):
    assert kendall_tau(first[:some], second[:others]) == pytest.approx(by_pairs(first[:some], second[:others]))


@given(strategies.groups(), st.data())
def test_plan_tau_counts_pairs_of_different_buckets(groups, data):
    order = data.draw(st.permutations([i for group in groups for i in group]))
    order = order[: data.draw(st.integers(0, len(order)))]
    bucket = {i: n for n, group in enumerate(groups) for i in group}
    signs = [1 if bucket[a] < bucket[b] else -1 for a, b in combinations(order, 2) if bucket[a] != bucket[b]]
    assert plan_tau(groups, order) == pytest.approx(sum(signs) / len(signs) if signs else 1.0)


def test_a_report_finds_the_ranks_and_iterations_that_disagree():
    arrivals = [
        Arrivals(0, 0, (3, 2, 1, 0)),
        Arrivals(0, 1, (3, 2, 0)),
        Arrivals(0, 3, (0, 2, 3)),
        Arrivals(1, 0, (3, 2, 0, 1)),
        Arrivals(1, 1, (3, 2, 0)),
    ]
    report = order_report(arrivals, 5)
    assert (report.parameters, report.iterations, report.ranks) == (4, 3, 2)
    assert report.between_ranks == pytest.approx((4 / 6 + 1) / 2)
    assert report.between_ranks_worst == (pytest.approx(4 / 6), 0, 0, 1)
    assert report.between_iterations == pytest.approx((1 - 1 + 1) / 3)
    assert report.between_iterations_worst == (-1, 0, 1, 3)
    assert report.unused == {1: pytest.approx(3 / 5), 4: 1}
    assert report.document()["kendall_tau_iterations_worst"] == {"tau": -1, "rank": 0, "iterations": [1, 3]}


def test_a_report_of_one_backward_compares_nothing():
    report = order_report([Arrivals(0, 0, (1, 0))])
    assert report.between_ranks is report.between_iterations is report.between_ranks_worst is None
    assert report.unused == {}
    assert report.document()["kendall_tau_ranks_worst"] is None


def pairwise_tau(first, second):
    """Return the tau of two tables of ready times pair by pair: swapped pairs, and halves where one says nothing."""
    inf = [[math.inf if math.isnan(time) else time for time in table] for table in (first, second)]
    signs = [
        [(table[i] > table[j]) - (table[i] < table[j]) for i, j in combinations(range(len(first)), 2)] for table in inf
    ]
    ordered = [(a, b) for a, b in zip(*signs, strict=True) if a or b]
    swaps = sum(abs(a - b) / 2 for a, b in ordered)
    return 1 - 2 * swaps / len(ordered) if ordered else 1.0


times = st.one_of(st.just(math.nan), st.sampled_from([0.0, 1.0, 2.0, 3.0, 4.0]))


@given(st.lists(st.tuples(times, times), max_size=9))
def test_the_tau_with_unused_parameters_is_counted_pair_by_pair(pairs):
    first, second = ([pair[place] for pair in pairs] for place in range(2))
    assert ready_tau(first, second) == pytest.approx(pairwise_tau(first, second))
    assert ready_tau(first, second) == pytest.approx(ready_tau(second, first))
    assert ready_tau(first, first) == 1


def test_experts_that_take_turns_are_no_agreement():
    """Two steps share the trunk's two parameters and use experts of their own, before them."""
    nan = math.nan
    one, other = [0, 1, nan, nan, 2, 3], [nan, nan, 0, 1, 2, 3]
    assert kendall_tau([0, 1, 4, 5], [2, 3, 4, 5]) == 1
    # 15 pairs: 4 of experts and 8 of an expert and the trunk turn round, 2 are told by one step, the trunk's agrees.
    assert ready_tau(one, other) == pytest.approx((1 - 4 - 8) / 15)
    report = order_report([Arrivals(0, 0, (0, 1, 4, 5)), Arrivals(0, 1, (2, 3, 4, 5))])
    assert report.between_iterations == 1
    assert report.between_iterations_with_unused == pytest.approx(-11 / 15)
