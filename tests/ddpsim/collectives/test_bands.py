from __future__ import annotations

import math
from dataclasses import replace

import pytest

from ddpsim.collectives.bands import band_factors
from ddpsim.collectives.calibration import Calibration, Curve, CurvePoint
from ddpsim.collectives.conditions import CollectiveOptions
from ddpsim.collectives.execute import make_transport
from ddpsim.topology.spec import load_topology

LOOPBACK = load_topology("loopback").place(1, 2)
START = Calibration.priors("gloo")
SIZES = [4096, 1 << 20, 64 << 20]


def test_without_covariance_the_band_is_the_residuals() -> None:
    factors = band_factors(LOOPBACK, replace(START, residual_low=-0.1, residual_high=0.2), SIZES)
    for low, high in factors:
        assert math.log(low) == pytest.approx(-0.1)
        assert math.log(high) == pytest.approx(0.2)


@pytest.mark.parametrize("name", [name for name, constant in START.constants.items() if constant.log_std is not None])
def test_an_unsure_constant_widens_the_band_as_moving_it_moves_the_time(name: str) -> None:
    std = 0.01
    unsure = replace(START, fitted_names=(name,), covariance=((std**2,),))
    moved = START.with_values({name: START[name] * math.exp(std)}, source="moved")
    for size, (low, high) in zip(SIZES, band_factors(LOOPBACK, unsure, SIZES), strict=True):
        before, after = (
            make_transport(LOOPBACK, "gloo", c, options=CollectiveOptions(isolated=False)).allreduce_s(size)
            for c in (START, moved)
        )
        assert math.log(high) == pytest.approx(1.2816 * abs(math.log(after / before)), rel=0.05, abs=1e-5)
        assert low == pytest.approx(1 / high)


def test_with_rows_the_band_is_narrow_at_a_row_and_wide_beyond() -> None:
    points = tuple(CurvePoint(4096 * 16**k, 1e-4 * 3**k) for k in range(4))
    curve = Curve(LOOPBACK.topology.fingerprint(), LOOPBACK.nodes, LOOPBACK.gpus_per_node, points)
    sizes = [4096 * 16, 4096 * 16 * 4, 4096 * 16**3, 4096 * 16**4]
    at, between, last, beyond = (h / low for low, h in band_factors(LOOPBACK, replace(START, curves=(curve,)), sizes))
    assert at == pytest.approx(last)
    assert between > at
    assert beyond > at
