from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ddpsim import Calibration, InputError, load_topology
from ddpsim.calibrating.calibrate import fit_samples, with_versions
from ddpsim.calibrating.measured import MeasuredRow, MeasuredTable
from ddpsim.calibrating.samples import Sample
from ddpsim.collectives.nccl.versions import CURRENT
from tests.ddpsim.collectives.groups import group_on

DGX = load_topology("dgx-1v")
START = Calibration.priors("nccl")
SIZES = [1024 * 2**k for k in range(20)]


def table(ranks: int = 8, **header: str) -> MeasuredTable:
    return MeasuredTable("t", tuple(MeasuredRow(s, 1e-5, "t") for s in SIZES), ranks=ranks, header=header)


def measured(times: np.ndarray, ranks: int = 8, **header: str) -> MeasuredTable:
    rows = tuple(MeasuredRow(s, t, f"t: row {n}") for n, (s, t) in enumerate(zip(SIZES, times, strict=True)))
    return MeasuredTable("t", rows, ranks=ranks, header=header)


def test_a_header_states_version_algorithm_and_launch_mode() -> None:
    sample = Sample.of(table(nccl="2.8.4-1", algorithm="ring (forced)", command="all_reduce_perf -b 8 -g 4"), DGX)
    assert (sample.version, sample.version_known, sample.algorithm, sample.gpus_per_process) == (2008, True, "ring", 4)
    plain = Sample.of(table(nccl="not stated", mode="single process, nGpus 8 (34 us)"), DGX)
    assert (plain.version, plain.version_known, plain.algorithm, plain.gpus_per_process) == (CURRENT, False, "auto", 8)


def test_a_header_that_forces_simple_leaves_one_protocol() -> None:
    forced, free = (Sample.of(table(ranks=16, algorithm="ring", **more), DGX) for more in ({"proto": "Simple"}, {}))
    assert {entry.protocol for entry in forced.layout().entries} == {"simple"}
    assert {entry.protocol for entry in free.layout().entries} == {"ll", "ll128", "simple"}
    assert forced.predict(START)[0] > 1.5 * free.predict(START)[0]


def test_ranks_fill_as_many_nodes_as_they_need() -> None:
    assert Sample.of(table(ranks=16), DGX).placement.nodes == 2
    assert Sample.of(table(ranks=4), DGX).placement.gpus_per_node == 4
    with pytest.raises(InputError, match="12 ranks"):
        Sample.of(table(ranks=12), DGX, 1)


def test_collectives_measured_one_by_one_are_told_from_those_of_nccl_tests() -> None:
    placement, alone_s = DGX.place(1), START["nccl.isolated_s"]
    for isolated in ("True", "False"):
        sample = Sample.of(table(isolated=isolated), DGX)
        expected = group_on(placement, isolated=isolated == "True")
        assert sample.predict(START) == pytest.approx([expected.estimate_s(size) for size in SIZES])
    times = 1.3 * Sample.of(table(isolated="True"), DGX).predict(START)
    sample = Sample.of(measured(times, isolated="True"), DGX)
    corrected = replace(START, curves=(sample.curve(),))
    assert sample.predict(corrected) == pytest.approx(times)
    for isolated, expected_s in ((True, times), (False, times - alone_s)):
        found = group_on(placement, calibration=corrected, isolated=isolated)
        assert [found.estimate_s(size) for size in SIZES] == pytest.approx(expected_s)
    gloo = Sample.of(measured(times, isolated="True", backend="gloo"), DGX).curve()
    assert [point.time_s for point in gloo.points] == pytest.approx(times)


def test_an_unstated_version_is_told_from_the_rows() -> None:
    truth = Sample.of(table(nccl="2.8.3"), DGX).predict(START)
    found = with_versions([Sample.of(measured(truth), DGX)], START)
    assert found[0].version < 2013
    today = Sample.of(table(nccl="2.23.4"), DGX).predict(START)
    assert with_versions([Sample.of(measured(today), DGX)], START)[0].version == CURRENT


def test_a_disturbed_row_is_fitted_and_met_at_the_lesser_of_its_times_and_judged_at_the_first() -> None:
    rows = [MeasuredRow(1024, 600e-6, "t", 90e-6), MeasuredRow(2048, 91e-6, "t", 89e-6)]
    sample = Sample.of(MeasuredTable("t", tuple(rows), ranks=8), DGX)
    assert sample.measured.tolist() == [600e-6, 91e-6]
    assert sample.undisturbed.tolist() == [90e-6, 91e-6]
    assert [point.time_s for point in sample.curve().points] == [90e-6, 91e-6]
    fitted = fit_samples([sample], START)[1]
    assert sample.predict(fitted) == pytest.approx([90e-6, 91e-6])
