"""Published peaks of memory under schemes, and the page that has them."""

from __future__ import annotations

import pytest

from studies.published.memory import PAGE, schemes

REACH = 0.10


def test_peaks_of_schemes_are_in_reach_and_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    found = list(schemes())
    assert len(found) == 7
    for row in found:
        assert row.predicted_peak == pytest.approx(row.peak, rel=REACH), row.scheme
        assert row.line() in text
