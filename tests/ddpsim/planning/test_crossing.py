import math
from dataclasses import replace

import pytest

from ddpsim.planning.crossing import banded_crossing, crossing, crossing_band
from ddpsim.prediction.doubts.doubt import Doubt
from ddpsim.simulation.communication import Assumptions


def power(x, end):
    """A curve as exposed communication is: it falls as 1/x, and a slower wire lifts it."""
    return (1.0 if end is None else end.compute) * 8.0 / x - 1


def doubt(name, low, high):
    return Doubt(name, "measure it", Assumptions(compute=low), Assumptions(compute=high))


def test_a_crossing_is_found_to_a_percent():
    found = crossing(power, 1, 1000)
    assert found.at == pytest.approx(8, rel=0.01)
    assert found.slope < 0


@pytest.mark.parametrize(("least", "most"), [(10, 1000), (0.1, 4)])
def test_a_curve_on_one_side_crosses_nowhere(least, most):
    assert crossing(power, least, most) is None


def test_a_doubt_moves_the_crossing_by_its_own_factor():
    """The curve crosses at 8 times the factor, so that the band is known: exactly the factor's."""
    found = crossing(power, 1, 1000)
    low, high = crossing_band(power, found, [doubt("a", 0.5, 1.5)], 1, 1000)
    assert (low, high) == pytest.approx((4, 12), rel=0.03)


def test_independent_doubts_join_in_quadrature_of_logarithms():
    found = crossing(power, 1, 1000)
    one = crossing_band(power, found, [doubt("a", 0.5, 2.0)], 1, 1000)
    two = crossing_band(power, found, [doubt("a", 0.5, 2.0), doubt("b", 0.5, 2.0)], 1, 1000)
    assert math.log(two[1] / found.at) == pytest.approx(math.sqrt(2) * math.log(one[1] / found.at), rel=0.03)


def test_a_crossing_beyond_the_bounds_is_at_the_bound_and_an_end_as_predicted_moves_nothing():
    found = crossing(power, 1, 16)
    assert crossing_band(power, found, [doubt("a", 0.01, 100.0)], 1, 16) == pytest.approx((1, 16))
    fixed = replace(doubt("a", 1.0, 1.0), low=None)
    assert crossing_band(power, found, [fixed], 1, 16) == pytest.approx((found.at, found.at), rel=0.01)


POINTS = (1, 4, 16, 64, 256)


def banded(x):
    """The same curve with a band of half to twice its falling part, whose ends cross at 4 and at 16."""
    return power(x, None), power(2 * x, None), power(x / 2, None)


def test_the_ends_of_a_band_cross_where_each_of_them_falls_through_zero():
    middle, low, high = banded_crossing(banded, lambda x: power(x, None), POINTS, 0.5)
    assert middle == pytest.approx(8, rel=0.02)
    assert (low, high) == pytest.approx((4, 16), rel=0.15)
    assert low < middle < high


def test_an_end_that_is_above_zero_everywhere_or_nowhere_is_not_given_a_place():
    lifted, sunk = (lambda x: (power(x, None), -1.0, 1.0)), (lambda x: (1.0, 1.0, 1.0))
    assert banded_crossing(lifted, lambda x: power(x, None), POINTS, 0.5)[1:] == (0.0, math.inf)
    assert banded_crossing(sunk, lambda x: 1.0, POINTS, 0.5) == (math.inf,) * 3
