from __future__ import annotations

import math
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn")

from studies.tuning.__main__ import configurations
from studies.tuning.judge import blind, gains_apart, judged
from studies.tuning.verdicts import verdicts

CAPS: list[dict[str, Any]] = [{}, *({"bucket_cap_mb": cap} for cap in (1, 5, 10, 25, 40, 98))]
STEPS = [1.0, 1.5, 1.2, 0.9, 0.95, 1.1, 1.6]


def plans() -> list[dict[str, Any]]:
    return [{"caps": caps, "blocks": [[step] * 4] * 2} for caps, step in zip(CAPS, STEPS, strict=True)]


def tuning(kept: str) -> dict[str, Any]:
    return {"rounds": [{"first_step": 0, "kept": kept, "steps": 80, "present_step_s": 1.0}]}


def test_a_choice_is_held_against_the_best_and_the_default() -> None:
    row = judged(tuning("DistributedDataParallel(model, bucket_cap_mb=25)"), [9.0, 3.0, *([1.02] * 78), 5.0], plans())
    assert row.over_best == pytest.approx(0.95 / 0.9)
    assert row.over_default == pytest.approx(0.95)
    assert row.lost == pytest.approx(0.02 * 78 / 80)
    assert not row.default_best
    with pytest.raises(ValueError, match="not swept"):
        judged(tuning("DistributedDataParallel(model, bucket_cap_mb=7)"), [1.0] * 80, plans())


def test_the_least_of_noisy_plans_is_not_the_best() -> None:
    """Ten plans of the same step: the kept one is 2 % over the luckiest of them, and as good as any."""
    draws = np.random.default_rng(3)
    ratios, apart = [], []
    for _ in range(40):
        noisy = [
            {"caps": caps, "blocks": draws.normal(1.0, 0.03, (4, 4)).tolist()}
            for caps in [{}, *({"bucket_cap_mb": cap} for cap in range(1, 10))]
        ]
        row = judged(tuning("DistributedDataParallel(model)"), [1.0] * 80, noisy)
        ratios.append(row.over_best)
        apart.append(row.over_best_apart)
    assert fmean(ratios) > 1.008
    assert fmean(apart) == pytest.approx(1.0, abs=3 * stdev(apart) / math.sqrt(40))


def test_a_reach_holds_once_all_is_measured_and_is_missed_at_once() -> None:
    good = judged(tuning("DistributedDataParallel(model, bucket_cap_mb=10)"), [1.0] * 80, plans())
    bad = judged(tuning("DistributedDataParallel(model, bucket_cap_mb=25)"), [1.0] * 80, plans())
    assert [each.holds for each in verdicts([good], [], None, 1)] == [True, True, None, True, True, None, None]
    assert verdicts([good], [], None, 2)[0].holds is None
    assert verdicts([good, bad], [], None, 3)[0].holds is False


def test_a_halved_network_is_judged_by_its_second_round_and_the_cost_by_turns() -> None:
    found = {"tuning": {"rounds": [{"first_step": 0}, {"first_step": 160}]}, "halved_at": 80, "after": [1.0] * 140}
    cost = {"without": [[1.0, 1.01, 0.99]] * 4, "with": [[1.0, 1.01, 0.99]] * 4, "calls": [1e-5] * 5, "rounds": 1}
    halved, costs = verdicts([], [found], cost, 1)[-2:]
    assert halved.holds
    assert halved.found == "noticed after 80 steps, decided after 140"
    assert costs.holds
    assert not verdicts([], [found | {"after": [1.0] * 301}], cost, 1)[-2].holds
    assert not verdicts([], [], cost | {"rounds": 0}, 1)[-1].holds
    assert not verdicts([], [], cost | {"with": [[1.1, 1.11, 1.09]] * 4}, 1)[-1].holds


def test_the_blind_search_finds_the_best_cap_and_pays_for_it() -> None:
    found, lost = blind(CAPS, STEPS)
    assert found == 0.9
    assert lost > -0.1


def test_there_are_twelve_configurations_of_two_and_four_ranks() -> None:
    found = configurations()
    assert len({each["name"] for each in found if not each.get("halved")}) == 12
    assert any(each.get("halved") for each in found)
    assert {each["ranks"] for each in found} == {2, 4}


def test_predicted_gains_are_held_against_those_of_the_sweep() -> None:
    plan = {"call": "DistributedDataParallel(model, bucket_cap_mb=10)", "predicted_gain": 0.05}
    assert gains_apart({"rounds": [{"plans": [plan]}]}, plans()) == [pytest.approx(0.05)]
