"""Accumulated steps of a published table: what `no_sync` saves, and what it leaves."""

from __future__ import annotations

import pytest

from studies.published.accumulated import ALIKE, UNDISTURBED, rows


def test_what_no_sync_saves_is_three_reductions_of_four() -> None:
    """Devices that differ and hidden communication slow the micro-batches that reduce nothing too: not here."""
    plain, every, last = rows(ALIKE)
    assert (plain.accumulate, every.sync, last.sync) == (1, "every", "last")
    assert every.over_s == pytest.approx(4 * plain.over_s, rel=0.05)
    assert last.over_s == pytest.approx(plain.over_s, rel=0.05)


def test_what_no_sync_leaves_is_that_devices_differ_as_v100s_did() -> None:
    """Micro-batches that reduce nothing are slower on eight devices than on one; the priors say 7 % too much of it."""
    _, every, last = rows(UNDISTURBED)
    _, _, alike = rows(ALIKE)
    reduction_s = (every.measured_s - last.measured_s) / 3
    slower_s = last.measured_s - reduction_s - last.accumulate * last.predicted.local_s
    assert last.predicted_s - alike.predicted_s == pytest.approx(slower_s, rel=0.1)
