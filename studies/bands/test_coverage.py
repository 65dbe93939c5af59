"""Bands on tables and steps that had no part in them: a small subset of bands.md."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ddpsim.prediction.doubts.spreads import COLLECTIVES, SLOW_HOST
from studies.accuracy.residuals import Row, rows, systems
from studies.bands.coverage import TARGET, family_rows, step_rows
from studies.bands.spreading import APART, apart, interval_score, judge, judge_families, klass, quantile, spreads
from studies.published import gpu_steps
from studies.published.gpu_systems import cases, system_named


def test_bands_cover_unseen_sites_and_score_better_than_a_constant_one() -> None:
    known = rows()
    found = judge(known, known)
    assert 0.75 <= found.coverage <= 0.9
    assert found.score < found.constant_score
    derived = spreads(known)
    for pair in COLLECTIVES.values():
        for spread in pair:
            assert derived[spread.name] == pytest.approx((spread.low, spread.high), abs=0.01)


def test_families_are_scored_beside_the_best_constant_band_of_their_own_rows() -> None:
    known = rows()
    found = judge_families(known)
    assert sum(len(own.rows) for own in found.values()) == sum(row.site != APART for row in known)
    for name, own in found.items():
        errors = [row.error for row in known if row.family == name and row.site != APART]
        assert own.constant_width < np.exp(max(errors)) - np.exp(min(errors))
    assert set(family_rows(found)) <= set(TARGET.read_text(encoding="utf-8").splitlines())


def test_a_site_that_is_set_apart_has_no_part_in_its_familys_band_and_one_of_its_own() -> None:
    known = rows()
    assert all(row.site != APART for row in judge(known, known).rows)
    derived = spreads(known)
    assert derived["through host memory, bandwidth"][1] < 0.6 < SLOW_HOST.low
    held, of = apart(known)
    assert of / 2 < held < of


def test_the_interval_score_is_least_at_the_percentiles() -> None:
    errors = np.random.default_rng(0).normal(size=4000)
    low, high = np.percentile(errors, [10, 90])
    assert interval_score(low, high, errors).mean() == pytest.approx(3.5, abs=0.1)
    for more in (-0.1, 0.1):
        assert interval_score(low - more, high + more, errors).mean() > interval_score(low, high, errors).mean()


def test_a_site_has_no_part_in_its_own_band() -> None:
    family = "NVSwitch"
    calm = [Row(f"t{n}", f"s{n}", family, 1, 0.0, 0.01 * n) for n in range(-5, 6)]
    wild = Row("wild", "wild", family, 1, 0.0, 3.0)
    found = judge([wild], [*calm, wild])
    assert found.coverage == 0
    assert klass(wild) == COLLECTIVES[family][1].name
    assert quantile(np.array([1.0, 2.0, 3.0]), np.ones(3), 0.5) == 2.0


def test_tables_name_machines_that_hold_them() -> None:
    assert len({system.table for system in systems()}) == len(systems()) > 80


def test_steps_inside_a_node_lie_in_their_bands_and_on_the_page() -> None:
    system = replace(system_named("baskerville"), curves={})
    page = TARGET.read_text(encoding="utf-8").splitlines()
    for dtype, row in cases(system):
        if (dtype, row["nodes"]) == ("bfloat16", "1"):
            step = gpu_steps.judge(system, dtype, row)
            assert step.inside
            assert set(step_rows([step])) <= set(page)
