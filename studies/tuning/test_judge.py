from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("sklearn")

from studies.tuning.__main__ import configurations
from studies.tuning.judge import blind, judged

CAPS: list[dict[str, Any]] = [{}, *({"bucket_cap_mb": cap} for cap in (1, 5, 10, 25, 40, 98))]
STEPS = [1.0, 1.5, 1.2, 0.9, 0.95, 1.1, 1.6]


def test_a_choice_is_held_against_the_best_and_the_default() -> None:
    plans = [{"caps": caps, "blocks": [[step] * 4] * 2} for caps, step in zip(CAPS, STEPS, strict=True)]
    kept = "DistributedDataParallel(model, bucket_cap_mb=25)"
    tuning = {"rounds": [{"kept": kept, "steps": 80, "present_step_s": 1.0, "lost_s": 1.6}]}
    row = judged(tuning, plans)
    assert row["over_best"] == pytest.approx(0.95 / 0.9)
    assert row["over_default"] == pytest.approx(0.95)
    assert row["lost"] == pytest.approx(0.02)


def test_the_blind_search_finds_the_best_cap_and_pays_for_it() -> None:
    found, lost = blind(CAPS, STEPS)
    assert found == 0.9
    assert lost > -0.1


def test_there_are_twelve_configurations_of_two_and_four_ranks() -> None:
    found = configurations()
    assert len({each["name"] for each in found}) == 12
    assert {each["ranks"] for each in found} == {2, 4}
