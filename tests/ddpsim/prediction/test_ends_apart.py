"""What an assumption changes, where ranks go on without each other: few iterations tell what all of them do."""

import pytest

from ddpsim import Options, load_topology, load_workload
from ddpsim.prediction.doubts.causes import doubts_of
from ddpsim.prediction.periods import FEW_APART, is_told_by_few, periods_under, with_assumptions
from ddpsim.prediction.predict import predict
from ddpsim.simulation.job import Job


def test_ends_are_those_of_whole_runs_to_a_thousandth_of_the_step():
    options = Options(scheme="parameter-server:servers=2,async", stragglers={1: 1.2})
    machine = load_topology("dgx-1v")
    prediction = predict(Job(load_workload("vgg16@v100-fp32-b32"), machine, nodes=2, options=options), band=False)
    assert is_told_by_few(prediction.run)
    sizes = [bucket.size_bytes for bucket in prediction.plan.buckets]
    doubts = doubts_of(prediction.workload, prediction.placement, options, None, sizes)
    ends = [doubt.high for doubt in doubts if doubt.name.startswith(("allreduce", "estimated"))]
    assert len(ends) == 2
    for end, found in zip(ends, periods_under(prediction, ends), strict=True):
        assert not found.retimed
        whole_s = with_assumptions(prediction.run, end).iteration_s
        assert found.iteration_s == pytest.approx(whole_s, abs=1e-3 * prediction.iteration_s)


@pytest.mark.parametrize(
    "options",
    [
        {"scheme": "parameter-server:async", "iterations": FEW_APART},
        {"scheme": "parameter-server:async", "stragglers": {1: 1.3}, "jitter": 0.05},
        {
            "scheme": "parameter-server:servers=2,async",
            "stragglers": {1: 1.3},
        },  # which messages meet is another each time
        {"stragglers": {1: 1.3}},
    ],
)
def test_iterations_that_differ_or_are_few_are_all_looked_at(options):
    run = predict(Job(load_workload("mlp"), load_topology("dgx-1v"), options=Options(**options)), band=False).run
    assert not is_told_by_few(run)
