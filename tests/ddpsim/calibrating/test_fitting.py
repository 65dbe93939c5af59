from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpsim.calibrating.fitting import Prior, Vector, fit
from tests.profile import examples

SIZES = np.geomspace(1e3, 1e9, 25)


def line(values: dict[str, float]) -> Vector:
    return values["alpha"] + SIZES / values["bandwidth"]


PRIORS = {"alpha": Prior(1e-5, 2.0), "bandwidth": Prior(1e9, 2.0)}


@given(alpha=st.floats(1e-6, 1e-4), bandwidth=st.floats(1e8, 1e11))
@settings(max_examples=examples(25), deadline=None)
def test_exact_rows_give_the_constants_back(alpha: float, bandwidth: float) -> None:
    found = fit(line, PRIORS, line({"alpha": alpha, "bandwidth": bandwidth}))
    assert found.values["alpha"] == pytest.approx(alpha, rel=0.01)
    assert found.values["bandwidth"] == pytest.approx(bandwidth, rel=0.01)
    assert found.undetermined == ()


def test_the_covariance_is_the_spread_of_repeated_fits() -> None:
    random, truth = np.random.default_rng(1), line({"alpha": 2e-5, "bandwidth": 5e9})
    fits = [fit(line, PRIORS, truth * np.exp(0.05 * random.standard_normal(25))) for _ in range(60)]
    spread = np.std([[np.log(f.values[name]) for name in PRIORS] for f in fits], axis=0)
    stated = np.mean([np.sqrt(np.diag(f.covariance)) for f in fits], axis=0)
    assert stated == pytest.approx(spread, rel=0.4)


def test_an_outlier_is_named_and_moves_little() -> None:
    measured = line({"alpha": 2e-5, "bandwidth": 5e9})
    measured[7] *= 10
    found = fit(line, PRIORS, measured)
    assert found.outliers == (7,)
    assert found.values["alpha"] == pytest.approx(2e-5, rel=0.03)


def test_a_constant_the_rows_say_nothing_of_keeps_its_prior() -> None:
    measured = line({"alpha": 2e-5, "bandwidth": 5e9})
    flat = np.full(25, 1e-3)
    found = fit(
        lambda values: flat * values["level"] + 1e-12 * values["faint"],
        {"level": Prior(1.0, 1.0), "faint": Prior(3.0, 1.0)},
        flat,
    )
    assert found.undetermined == ("faint",)
    assert found.values["faint"] == pytest.approx(3.0)
    assert fit(line, {**PRIORS, "unused": Prior(3.0, 1.0)}, measured).unused == ("unused",)
