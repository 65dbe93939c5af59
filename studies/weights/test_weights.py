"""Random cases of a fresh seed end where their schemes' definitions do. `STUDIES_WEIGHTS` says how many."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("torch")

from studies.fresh import seed
from studies.weights.__main__ import study
from studies.weights.cases import SCHEMES, case_of
from studies.weights.features import TAKERS

SEED = seed()
COUNT, PARTS = int(os.environ.get("STUDIES_WEIGHTS", 115)), 5


@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(PARTS))
def test_random_cases_end_where_their_definition_does(part: int) -> None:
    print(f"python -m studies.weights --seed {SEED} --count {COUNT}")
    cases = [case_of(SEED, number, list(SCHEMES)) for number in range(part, COUNT, PARTS)]
    tally = study(cases)
    assert tally.differing == [], f"seed {SEED}"
    assert tally.equal.total() + tally.refused.total() == len(cases)
    assert tally.equal.total() > len(cases) / 2, tally.reasons


def test_every_scheme_is_trained_and_most_cases_are_not_refused_by_their_options() -> None:
    cases = [case_of(1, number, list(SCHEMES)) for number in range(1000)]
    assert {case.family for case in cases} == set(SCHEMES)
    assert {case.world for case in cases} == {2, 3, 4}
    assert len({case.seed for case in cases}) > 990
    assert {case.feature for case in cases} == {"", "static", *TAKERS}
    assert str(case_of(1, 17, list(SCHEMES))) == str(cases[17])
