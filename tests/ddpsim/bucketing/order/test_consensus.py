from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpsim.bucketing.order.consensus import CONSENSUS, arrange, consensus
from ddpsim.common.errors import UnknownNameError

NAN = math.nan


def test_the_three_ways():
    by_rank = [[1.0, 4.0, NAN, NAN], [3.0, 2.0, 5.0, NAN], [2.0, 9.0, 7.0, NAN]]
    assert consensus(by_rank, "rank0") == pytest.approx([1, 4, 6, NAN], nan_ok=True)
    assert consensus(by_rank, "mean") == pytest.approx([2, 5, 6, NAN], nan_ok=True)
    assert consensus(by_rank, "slowest") == pytest.approx([3, 9, 7, NAN], nan_ok=True)


@pytest.mark.parametrize("how", CONSENSUS)
def test_ranks_that_agree_get_what_they_agree_on(how):
    assert consensus([[3.0, 1.0, 2.0]] * 3, how) == [3, 1, 2]


def test_unknown_words_are_refused():
    with pytest.raises(UnknownNameError, match="unknown consensus 'rank1'; did you mean rank0"):
        consensus([[1.0]], "rank1")
    with pytest.raises(UnknownNameError, match="unknown place of unused parameters 'middle'"):
        arrange([1.0], "middle")


@given(st.lists(st.one_of(st.integers(0, 5).map(float), st.just(NAN)), min_size=1), st.sampled_from(["first", "last"]))
def test_arrange_orders_everything_and_keeps_the_unknown_at_one_end(ready, unused):
    order = arrange(ready, unused)
    assert sorted(order) == list(range(len(ready)))
    never = [i for i, time in enumerate(ready) if math.isnan(time)]
    known = order[len(never) :] if unused == "first" else order[: len(order) - len(never)]
    assert [ready[i] for i in known] == sorted(ready[i] for i in known)
    assert never == (order[: len(never)] if unused == "first" else order[len(known) :])


def test_at_equal_times_the_later_registered_comes_first_as_in_a_backward():
    assert arrange([1.0, 1.0, 0.0, 1.0]) == [2, 3, 1, 0]
