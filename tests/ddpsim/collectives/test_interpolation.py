from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpsim.collectives.curve import RowTable
from tests.profile import examples

SIZES = [1024 * 16**k for k in range(5)]
BETWEEN = [1024 * 2**k for k in range(-3, 21)]


def line_s(size_bytes: int) -> float:
    return 20e-6 + size_bytes / 10e9


@pytest.mark.parametrize("model_s", [lambda size: 3 * line_s(size), lambda size: 1e-5 * math.sqrt(size)])
def test_rows_are_met_whatever_the_model(model_s) -> None:  # type: ignore[no-untyped-def]
    rows = RowTable.of(SIZES, [line_s(size) for size in SIZES], [model_s(size) for size in SIZES])
    for size in SIZES:
        assert rows.time_s(size, model_s(size)) == pytest.approx(line_s(size))


def test_a_right_model_is_followed_between_and_beyond() -> None:
    rows = RowTable.of(SIZES, [2 * line_s(size) for size in SIZES], [line_s(size) for size in SIZES])
    for size in BETWEEN:
        assert rows.time_s(size, line_s(size)) == pytest.approx(2 * line_s(size))


def test_a_jump_of_the_model_that_no_row_shows_is_outvoted() -> None:
    rows = RowTable.of(SIZES, [line_s(size) for size in SIZES], [line_s(size) for size in SIZES])
    size = 2 * SIZES[2]
    assert rows.time_s(size, 4 * line_s(size)) < 1.3 * line_s(size)


@given(st.lists(st.floats(1.0, 30.0), min_size=4, max_size=4), st.lists(st.floats(0.1, 10.0), min_size=5, max_size=5))
@settings(max_examples=examples(60), deadline=None)
def test_times_stay_between_those_of_their_rows(steps: list[float], factors: list[float]) -> None:
    times = [1e-5 * math.prod(steps[:k]) for k in range(5)]
    rows = RowTable.of(SIZES, times, [time * factor for time, factor in zip(times, factors, strict=True)])
    for (low, before), (high, after) in pairwise(zip(SIZES, times, strict=True)):
        for size in (2 * low, 4 * low, high // 2):
            assert before * (1 - 1e-9) <= rows.time_s(size, 1e-4) <= after * (1 + 1e-9)


def test_a_level_stretch_is_level_to_the_last_bit() -> None:
    rows = RowTable.of(SIZES, [3e-4] * 5, [line_s(size) for size in SIZES])
    assert len({rows.time_s(size, line_s(size)) for size in range(SIZES[0], SIZES[3], 99_991)}) == 1


@given(st.lists(st.floats(0.05, 30.0), min_size=4, max_size=4), st.lists(st.floats(0.1, 10.0), min_size=5, max_size=5))
@settings(max_examples=examples(60), deadline=None)
def test_rows_that_fall_are_met_and_nothing_between_is_beyond_both(steps: list[float], factors: list[float]) -> None:
    times = [1e-5 * math.prod(steps[:k]) for k in range(5)]
    models = [time * factor for time, factor in zip(times, factors, strict=True)]
    rows = RowTable.of(SIZES, times, models)
    for size, time_s, model_s in zip(SIZES, times, models, strict=True):
        assert rows.time_s(size, model_s) == pytest.approx(time_s)
    for (low, before), (high, after) in pairwise(zip(SIZES, times, strict=True)):
        for size in (low + 1, 2 * low, 4 * low, high // 2, high - 1):
            assert min(before, after) * (1 - 1e-9) <= rows.time_s(size, 1e-4) <= max(before, after) * (1 + 1e-9)
