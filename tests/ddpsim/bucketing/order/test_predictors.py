from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpsim.bucketing.order.predictors import ExponentialMean, LastArrival, MeanReady
from ddpsim.common.errors import InputError

NAN = math.nan
BACKWARDS = st.lists(st.lists(st.one_of(st.floats(0, 9), st.just(NAN)), min_size=4, max_size=4), min_size=1, max_size=9)


def columns(backwards):
    return [[time for time in column if not math.isnan(time)] for column in zip(*backwards, strict=True)]


def fed(predictor, backwards):
    for ready in backwards:
        predictor.observe(ready)
    return predictor.predict()


@given(BACKWARDS)
def test_last_arrival_and_mean_by_their_definition(backwards):
    last = [column[-1] if column else NAN for column in columns(backwards)]
    mean = [statistics.fmean(column) if column else NAN for column in columns(backwards)]
    assert fed(LastArrival(), backwards) == pytest.approx(last, nan_ok=True)
    assert fed(MeanReady(), backwards) == pytest.approx(mean, nan_ok=True)
    assert fed(ExponentialMean(1), backwards) == pytest.approx(last, nan_ok=True)


@given(BACKWARDS, st.floats(0.05, 1))
def test_the_exponential_mean_is_a_weighted_sum(backwards, weight):
    def weighted(column):
        if not column:
            return NAN
        shares = [(1 - weight) ** age * weight for age in range(len(column) - 1)] + [(1 - weight) ** (len(column) - 1)]
        return sum(share * time for share, time in zip(shares, reversed(column), strict=True))

    expected = [weighted(column) for column in columns(backwards)]
    assert fed(ExponentialMean(weight), backwards) == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize("weight", [0, -1, 1.1, NAN])
def test_a_weight_out_of_range_is_refused(weight):
    with pytest.raises(InputError, match=r"weight .* above 0 and at most 1"):
        ExponentialMean(weight)
