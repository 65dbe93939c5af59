from __future__ import annotations

from statistics import mean

from ddpsim.common.units import MIB
from studies.accuracy.operations import PAGE, judged, of_allreduces, page


def test_halves_of_an_allreduce_are_predicted_from_it() -> None:
    found = list(judged(of_allreduces()))
    large = [each for each in found if each.size_bytes >= MIB]
    assert mean(abs(each.error) for each in large) <= 0.10
    assert sum(abs(each.error) <= 0.10 for each in large) >= len(large) / 2
    assert sum(each.inside for each in large) >= 0.75 * len(large)
    assert PAGE.read_text(encoding="utf-8") == page(found)
