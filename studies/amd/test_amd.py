"""Held-out rows of AMD's machines are predicted within the study's bound, and the page is made of all rows."""

from __future__ import annotations

from statistics import median

from studies.amd.amd import HELD, rows, text
from studies.amd.steps import published_steps


def test_tables_that_had_no_part_are_predicted_within_25_percent() -> None:
    found = rows()
    assert median(abs(row.error) for row in found if row.part == HELD) < 0.25
    page = text()
    assert all(f"| {row.size_bytes >> 20} | {row.measured_s * 1e3:.3f} |" in page for row in found)


def test_steps_of_ddp_are_predicted_from_one_device_s() -> None:
    found = published_steps()
    assert median(abs(each.error) for each in found) < 0.03
    assert sum(each.inside for each in found) >= 0.75 * len(found)
    assert {each.gpus for each in found} == {2, 8, 16}
