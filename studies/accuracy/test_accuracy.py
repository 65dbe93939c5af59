"""Holds a few of the accuracy page's figures."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from ddpsim.calibrating.samples import Sample
from ddpsim.collectives.calibration import Calibration
from studies.accuracy import bands, cases
from studies.accuracy.documented import make_documented_calibration
from studies.accuracy.systems import SYSTEMS, System, load

SHIPPED = Calibration.priors("nccl")


def samples(*sites: str) -> Mapping[System, Sample]:
    return {system: load(system) for system in SYSTEMS if system.site in sites}


def priors(site: str) -> dict[str, Calibration]:
    """Return the constants that a site's own tables had no part in."""
    return {site: cases.without(site, samples(*{system.site for system in SYSTEMS}))}


CONTRADICTED = pytest.mark.xfail(strict=True, reason="twice as slow as a later table of the same machine from 4 MiB on")
TABLES = [
    pytest.param(system, marks=[CONTRADICTED] if system.name.endswith("efa_nccl246") else [], id=system.name)
    for system in SYSTEMS
]


@pytest.mark.parametrize("system", TABLES)
def test_every_table_fits_its_machine_and_shipped_constants_are_within_a_factor(system: System) -> None:
    sample = load(system)
    large = sample.select_rows([row for row, size in enumerate(sample.sizes) if size >= cases.MIB])
    assert np.abs(np.log(large.predict(SHIPPED) / large.measured)).mean() < np.log(1.6)


@pytest.mark.timeout(300)
def test_eight_rows_of_two_and_four_v100_predict_the_rest_within_two_percent() -> None:
    errors = cases.eight_rows(samples("vtrain"), priors("vtrain"))
    for each in errors[:2]:
        assert np.abs(each.columns["ddpsim"]).mean() < 0.02


@pytest.mark.timeout(300)
def test_one_and_two_nodes_predict_four_within_ten_percent() -> None:
    (errors,) = cases.more_nodes(samples("abci-v"), priors("abci-v"), only=("abci_V_v100_16gpu",))
    ours, baseline = (np.abs(errors.columns[name]).mean() for name in ("ddpsim", "constant busbw"))
    assert ours < 0.1
    assert ours < baseline
    assert bands.stated(errors).inside.mean() >= 0.5


def test_documented_constants_are_nccls_own() -> None:
    start = make_documented_calibration()
    assert start["nccl.ring.hop.nvlink.simple_s"] == 3.4e-6
    assert set(start.constants) == set(SHIPPED.constants)
