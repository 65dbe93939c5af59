"""Recorded steps whose gradients came all at once, because they were compiled in one graph."""

from dataclasses import replace

import numpy as np
import pytest

from ddpsim import Options, load_topology
from ddpsim.cli.predict import warn_of_pace
from ddpsim.prediction.predict import predict
from ddpsim.simulation.job import Job
from ddpsim.workload.replayed import spread_out
from tests.ddpsim.simulation.builders import workload

DGX = load_topology("dgx-1v")


def whole(**given):
    """Return a step whose gradients all come at the end of backward."""
    eager = workload(device="V100", size=4_000_000, host_share=0.01, **given)
    last = np.nanmax(eager.gradient_ready_s, axis=1, keepdims=True)
    ready = np.broadcast_to(last, eager.gradient_ready_s.shape).copy()
    hooks = np.broadcast_to(last * 0.01, ready.shape).copy()
    return replace(eager, gradient_hook_s=hooks, gradient_ready_s=ready, provenance={"compiled": True}), eager


def test_gradients_alike_are_spread_as_an_eager_steps():
    compiled, eager = whole()
    found = spread_out(compiled)
    assert found.gradient_ready_s == pytest.approx(eager.gradient_ready_s)
    assert found.gradient_hook_s == pytest.approx(eager.gradient_hook_s)
    assert spread_out(eager) is eager
    assert spread_out(replace(compiled, estimated=True)) == replace(compiled, estimated=True)


def test_a_parameter_without_a_gradient_stays_without():
    compiled, _ = whole()
    compiled.gradient_ready_s[0, 3] = compiled.gradient_hook_s[0, 3] = np.nan
    found = spread_out(compiled)
    assert np.isnan(found.gradient_ready_s[0]).tolist() == [index == 3 for index in range(8)]
    assert found.gradient_ready_s[0, 0] == pytest.approx(0.08)


def test_a_compiled_capture_hides_communication_only_where_its_graphs_are_split(capsys):
    compiled, _ = whole()
    unsplit, split = (predict(Job(compiled, DGX, options=Options(compiled=each)), band=False) for each in (False, True))
    assert split.summary.exposed_comm_s < 0.6 * unsplit.summary.exposed_comm_s
    told = set()
    warn_of_pace(unsplit, told)
    warn_of_pace(split, told)
    assert capsys.readouterr().err.count("predict with --compiled") == 1
