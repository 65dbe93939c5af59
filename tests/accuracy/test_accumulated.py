"""Accumulated steps of a published table: what `no_sync` saves, and what it leaves."""

from __future__ import annotations

import pytest

from tests.accuracy.accumulated import V100_SPREAD, rows


def test_what_no_sync_saves_is_three_reductions_of_four() -> None:
    plain, every, last = rows()
    assert (plain.accumulate, every.sync, last.sync) == (1, "every", "last")
    assert every.predicted_s > last.predicted_s
    over = [each.predicted_s - each.accumulate * each.predicted.local_s for each in (plain, every, last)]
    assert over[1] == pytest.approx(4 * over[0], rel=0.05)
    assert over[2] == pytest.approx(over[0], rel=0.05)


def test_most_of_what_no_sync_leaves_is_that_devices_differ() -> None:
    """Micro-batches without communication are slower on eight devices than on one, as V100s said they would be."""
    _, every, last = rows()
    _, _, apart = rows(V100_SPREAD)
    reduction_s = (every.measured_s - last.measured_s) / 3
    slower_s = last.measured_s - reduction_s - last.accumulate * last.predicted.local_s
    assert 0.5 < (apart.predicted_s - last.predicted_s) / slower_s < 1
