"""How doubts are joined, in cases with a closed form."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from ddpsim.prediction.doubts import join
from ddpsim.prediction.doubts.doubt import Doubt, Effect
from ddpsim.simulation.communication import Assumptions

NOW = Assumptions()
DOUBT = Doubt("pace", "measure", NOW, NOW, 0.25)


def test_one_doubt_alone_has_its_own_percentiles() -> None:
    [effect] = join.sort_by_width([join.effect(DOUBT, 10.0, (8.0, 13.0))])
    assert join.band(10.0, [effect]) == (8.0, 13.0)
    assert effect.document() == {"name": "pace", "low_s": 8.0, "high_s": 13.0, "remedy": "measure"}


def test_no_doubt_has_no_width() -> None:
    assert join.sort_by_width([join.effect(DOUBT, 10.0, (10.0, 10.0))]) == ()
    assert join.band(10.0, []) == (10.0, 10.0)


def test_normal_causes_of_a_linear_model_join_exactly() -> None:
    sigmas = (0.3, 0.4, 1.2)
    effects = [Effect(str(s), "", 5 - 1.2816 * s, 5 + 1.2816 * s) for s in sigmas]
    draws = 5 + np.random.default_rng(0).normal(size=(400_000, 3)) @ np.array(sigmas)
    assert join.band(5.0, effects) == pytest.approx(np.percentile(draws, [10, 90]), abs=0.01)
    assert join.band(5.0, effects)[1] == pytest.approx(5 + 1.2816 * 1.3)


def test_sides_are_joined_apart_and_ends_may_come_in_either_order() -> None:
    effects = [join.effect(DOUBT, 0.0, (4.0, -1.0)), join.effect(DOUBT, 0.0, (0.0, 3.0))]
    assert join.band(0.0, effects) == (-1.0, 5.0)


def test_a_remedy_leaves_its_share_of_the_doubt() -> None:
    most, other = join.effect(DOUBT, 0.0, (-4.0, 4.0)), Effect("other", "", 0.0, 1.0)
    assert join.without(0.0, [most, other], most) == pytest.approx((-1.0, math.hypot(1, 1)))
    gone = replace(most, left=0.0)
    assert join.without(0.0, [gone, other], gone) == (0.0, 1.0)


def test_the_largest_comes_first() -> None:
    names = [e.name for e in join.sort_by_width([Effect("b", "", 0, 1), Effect("a", "", 0, 1), Effect("c", "", 0, 2)])]
    assert names == ["c", "a", "b"]


def test_a_band_of_a_time_is_of_positive_times() -> None:
    halved = [Effect(name, "", 0.2, 1.5, 0.0) for name in "ab"]
    assert join.band(1.0, halved)[0] < 0
    low, high = join.positive_band(1.0, halved)
    assert low == pytest.approx(0.04)
    assert high == join.band(1.0, halved)[1]
    small = [Effect(name, "", 0.9, 1.1, 0.0) for name in "abc"]
    assert join.positive_band(1.0, small) == join.band(1.0, small)
