"""Allreduces inside a node by direct paths: tables that no fit has, and the halves."""

from __future__ import annotations

from statistics import median

from studies.accuracy.direct import FOUND_LAST, beside, choosing


def test_two_and_four_cards_that_no_fit_has_are_within_a_tenth_in_the_median() -> None:
    found = list(beside(FOUND_LAST))
    assert median(each.error for each in found) < 0.1
    assert all(each.error < 0.15 for each in found)


def test_two_a100_of_eight_are_near_where_they_came_out_a_sixth_too_fast() -> None:
    [pair] = beside([system for system in FOUND_LAST if system.table.startswith("hantian_2of8")])
    assert pair.error < 0.08


def test_sites_choose_or_judge_by_name() -> None:
    assert {"a3high", "abci-a", "together"} <= choosing()
    assert not {"a4", "hantian", "voltagepark"} & choosing()
