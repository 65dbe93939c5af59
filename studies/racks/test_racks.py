"""Rows inside a domain are predicted within the study's bound, and the page is made of all rows."""

from __future__ import annotations

from statistics import median

from studies.racks.racks import INSIDE, rows, text


def test_inside_a_domain_the_median_error_is_within_20_percent() -> None:
    found = rows()
    assert median(abs(row.error) for row in found if row.where == INSIDE) < 0.2
    page = text()
    assert all(f"| {row.size_bytes >> 20} | {row.measured_s * 1e3:.2f} |" in page for row in found)
