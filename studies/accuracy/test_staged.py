"""Tables of allreduces through host memory: those that judge are no further off than when they were first judged."""

from __future__ import annotations

from studies.accuracy.staged import CHOOSING, JUDGING, beside


def test_an_uplink_that_two_cards_share_was_not_fitted_to_the_table_that_judges_it() -> None:
    [dgx] = beside([system for system in JUDGING if system.site == "dgx-a100-staged"])
    assert dgx.error < 0.05


def test_rings_to_choose_on_are_within_a_fifth() -> None:
    assert all(each.error < 0.2 for each in beside(CHOOSING) if "tree" not in each.name)


def test_no_table_is_of_both_halves() -> None:
    assert not {system.table for system in CHOOSING} & {system.table for system in JUDGING}
