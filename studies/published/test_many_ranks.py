"""Series of many ranks: halves by name, the models' sizes, and a spread found again where it made the losses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from studies.published.many_ranks import (
    ALIKE,
    Loss,
    Series,
    fitted,
    judging,
    lines,
    losses,
    predicted_s,
    series,
    slowest,
)

SIZES = {"125m": 125311488, "350m": 355985408, "760m": 760470528, "1b": 1315950592, "3b": 2651837440, "7b": 6658859008,
         "13b": 12853954560, "30b": 29975214080, "8b": 8030261248}  # fmt: skip
"""Parameters that the pages state, and Llama 3.1 8B's."""


def test_every_other_series_by_name_judges_and_each_gets_longer_from_its_fewest() -> None:
    each = series()
    assert [one.name for one in each] == sorted(one.name for one in each)
    first = [one for one in each if not one.later]
    assert [one.name in judging(each) for one in first] == [number % 2 == 1 for number in range(len(first))]
    assert all(one.name in judging(each) for one in each if one.later)
    assert all(list(one.measured_s) == sorted(one.measured_s) and len(one.measured_s) > 1 for one in each)


def test_models_have_the_parameters_that_the_pages_say() -> None:
    for one in series():
        _, _, model, *_ = one.name.split("-")
        if model in SIZES:
            count = sum(parameter.numel for parameter in one.workload(1.0).parameters)
            assert count == pytest.approx(SIZES[model], rel=2e-3)


def test_a_spread_is_found_again_from_the_losses_that_it_makes() -> None:
    [one] = (each for each in series() if each.name == "mpt-a100-125m")
    alike = [Loss(one.name, gpus, 16, 0.0, 0.01 * gpus / 128) for gpus in (32, 64, 128)]
    made = [replace(loss, measured=(1 + loss.predicted) * _more(one, loss.gpus, 0.042) - 1) for loss in alike]
    assert fitted([(one, made)]) == pytest.approx(0.042)


def _more(one: Series, gpus: int, spread: float) -> float:
    return slowest(one, gpus, spread) / slowest(one, gpus, 0) / (slowest(one, 16, spread) / slowest(one, 16, 0))


def test_what_nodes_differ_by_brings_the_losses_of_a_series_nearer() -> None:
    [one] = (each for each in series() if each.name == "mpt-a100-125m")
    now, alike = losses(one), losses(one, ALIKE)
    assert all(a.predicted < n.predicted for a, n in zip(alike, now, strict=True))
    assert sum(abs(n.predicted - n.measured) for n in now) < sum(abs(a.predicted - a.measured) for a in alike)
    assert predicted_s(one, 0.3, 16) < predicted_s(one, 0.3, 128)
    text = "\n".join(lines(now, judging(series())))
    assert "| mpt-a100-125m | judging | 128 | 16 | 5.3% |" in text
    assert "within 1 % of the step" in text
