"""Rows are predicted within the study's bounds, and the width of the bands is the one it derives."""

from __future__ import annotations

from statistics import median

import pytest

from ddpsim.prediction.doubts.spreads import DOMAIN
from studies.racks.racks import ACROSS, INSIDE, covered, rows, spread, text

BOUNDS = {INSIDE: 0.2, ACROSS: 0.3}
HELD_MOST = {INSIDE: 0.96, ACROSS: 0.88}
"""The most rows that an 80 % band may hold. Inside a domain it is too wide: across domains sets its upper end."""


def test_median_errors_inside_and_across_are_within_the_bounds() -> None:
    found = rows()
    for where, bound in BOUNDS.items():
        assert median(abs(row.error) for row in found if row.where == where) < bound
    page = text()
    assert all(f"| {row.size_bytes >> 20} | {row.measured_s * 1e3:.2f} |" in page for row in found)


def test_bands_have_the_width_that_the_tables_give_and_hold_sites_that_had_no_part() -> None:
    found = rows()
    assert (DOMAIN.low, DOMAIN.high) == pytest.approx(spread(found), abs=0.01)
    assert 0.75 <= covered(found) <= 0.88
    for where, most in HELD_MOST.items():
        own = [row.held for row in found if row.where == where]
        assert 0.75 <= sum(own) / len(own) <= most
