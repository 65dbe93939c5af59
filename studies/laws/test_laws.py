"""A hundred random cases of the laws, of a fresh seed."""

from __future__ import annotations

import pytest

from studies.fresh import seed
from studies.laws.laws import LAWS, judged

SEED = seed()
CASES, PARTS = 100, 10


@pytest.mark.parametrize("part", range(PARTS))
def test_no_law_is_broken(part: int) -> None:
    found = [judged(SEED, number) for number in range(part, CASES, PARTS)]
    assert [each for each in found if each.what == "broken"] == [], f"seed {SEED}"


def test_a_step_that_goes_the_other_way_breaks_its_law() -> None:
    for law in LAWS:
        assert law.holds(1.0, 1.0)
        assert not law.holds(1.0, 1.1)
        assert law.holds(1.0, 0.9) != law.equal


def test_the_same_seed_and_number_make_the_same_case() -> None:
    assert judged(1, 3) == judged(1, 3)
