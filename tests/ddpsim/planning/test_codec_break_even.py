"""Break-even bandwidths of compression against predictions at that rate, and what is refused."""

from __future__ import annotations

import pytest

from ddpsim import Calibration, Options, load_topology, load_workload
from ddpsim.planning.codec_break_even import codec_rows
from ddpsim.prediction.answers import Answers
from ddpsim.prediction.predict import predict
from ddpsim.simulation.job import Job
from ddpsim.topology.link_rates import NIC, with_link_rate

MLP, LAB = load_workload("mlp"), load_topology("lab-flat")


def step_s(rate, scheme, calibration=None):
    wired = with_link_rate(LAB, NIC, rate)
    options = Options(compression=scheme)
    return predict(Job(MLP, wired, nodes=4, options=options, calibration=calibration), band=False).iteration_s


def test_steps_are_equal_at_the_break_even_and_the_band_holds_it():
    [row] = codec_rows(Answers(), Job(MLP, LAB, nodes=4), ["onebit"])
    assert row.rate_Bps is not None
    assert step_s(row.rate_Bps, "onebit") == pytest.approx(step_s(row.rate_Bps, "none"), rel=0.02)
    assert step_s(row.rate_Bps / 4, "onebit") < step_s(row.rate_Bps / 4, "none")
    assert step_s(row.rate_Bps * 4, "onebit") > step_s(row.rate_Bps * 4, "none")
    assert row.rate_low_Bps < row.rate_Bps < row.rate_high_Bps
    assert not row.measured


def test_dear_encoding_moves_the_break_even_down_and_what_is_measured_narrows_the_band():
    values = {"gloo.ddp.onebit_kernel_s": 3e-6, "gloo.ddp.onebit_Bps": 10e9}
    measured = Calibration.priors("gloo").with_values(values, source="measured")
    dear = measured.with_values({"gloo.ddp.onebit_Bps": 2e9}, source="measured")
    prior, known, slow = (
        codec_rows(Answers(), Job(MLP, LAB, nodes=4, calibration=each), ["onebit"])[0]
        for each in (None, measured, dear)
    )
    assert known.measured
    assert slow.rate_Bps < known.rate_Bps
    assert known.rate_high_Bps / known.rate_low_Bps < prior.rate_high_Bps / prior.rate_low_Bps
