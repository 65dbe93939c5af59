"""What a step waits for sums to the step."""

import pytest

from ddpsim import Options, load_topology, load_workload
from ddpsim.prediction.predict import predict
from ddpsim.simulation.engine import trace_of
from ddpsim.simulation.job import Job

JOBS = [
    ("resnet50", "dgx-1v", 2, {}),
    ("bert-base@a100-amp-b32", "dgx-a100", 2, {"scheme": "fsdp2"}),
    ("vgg16@v100-fp32-b32", "p3.16xlarge", 4, {}),
    ("mlp", "lab-flat", 3, {}),
    ("gpt2-small@a100-amp-b8", "dgx-1v", 1, {"comm": "noop"}),
    ("resnet50", "dgx-1v", 2, {"scheme": "parameter-server:async"}),
    ("mlp", "dgx-1v", 1, {"comm": "noop", "stragglers": {1: 2.0}}),
]


def predicted(name, machine, nodes, given, calibration=None):
    workload = load_workload(name)
    topology = load_topology(machine) if isinstance(machine, str) else machine
    options = Options(**given)
    return predict(Job(workload, topology, nodes=nodes, options=options, calibration=calibration), band=False)


@pytest.mark.parametrize(("name", "machine", "nodes", "given"), JOBS)
def test_the_path_leaves_no_moment_of_the_step_out(name, machine, nodes, given):
    found = predicted(name, machine, nodes, given)
    trace = trace_of(found.run.short(), path=True)
    spans = trace.path
    assert [after.start_s for after in spans[1:]] == [before.end_s for before in spans[:-1]]
    count = len(trace.of_rank(0))
    assert spans[-1].end_s - spans[0].start_s == pytest.approx(count * found.iteration_s, rel=1e-3)
    of_step = found.critical_path.spans
    assert of_step[0].start_s == 0
    assert of_step[-1].end_s == pytest.approx(found.iteration_s, rel=0.2)
    document = found.critical_path.document()
    assert sum(entry["seconds"] for entry in document) == pytest.approx(found.iteration_s, rel=1e-9)
    assert sum(entry["share"] for entry in document) == pytest.approx(1.0)
    assert all(entry["seconds"] > 0 for entry in document)


def seconds_of(prediction):
    return dict(prediction.critical_path.seconds)


def test_what_a_codec_computes_beside_the_step_is_no_launch():
    plain, coded = (seconds_of(predicted("resnet50", "dgx-1v", 2, given)) for given in ({}, {"compression": "onebit"}))
    assert coded["hooks and copies of DDP"] > 2 * plain["hooks and copies of DDP"]
    assert coded["host launches"] == pytest.approx(plain["host launches"], rel=0.02)


def test_an_optimizer_that_sleeps_is_the_optimizer():
    machine = load_topology("loopback")
    found = predict(
        Job(load_workload("resnet50"), machine, gpus_per_node=2, options=Options(scheme="priority")),
        band=False,
    )
    assert seconds_of(found)["optimizer"] == pytest.approx(found.summary.optimizer_s, rel=0.02)
