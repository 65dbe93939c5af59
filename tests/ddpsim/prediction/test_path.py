"""What a step waits for sums to the step; what more of a resource saves is what a simulation with more of it shows."""

import pytest

from ddpsim.prediction.predict import predict
from ddpsim.simulation import Options
from ddpsim.topology.link_rates import with_link_rate
from ddpsim.topology.spec import load_topology
from ddpsim.workload.files import load_workload
from tests.ddpsim.simulation.builders import ALIKE

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
    return predict(workload, topology, nodes=nodes, options=options, calibration=calibration, band=False, brief=True)


@pytest.mark.parametrize(("name", "machine", "nodes", "given"), JOBS)
def test_the_path_leaves_no_moment_of_the_step_out(name, machine, nodes, given):
    found = predicted(name, machine, nodes, given)
    trace = found.run.traced_path()
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


def saved(prediction, resource):
    [entry] = [each for each in prediction.critical_path.sensitivities() if each["resource"] == resource]
    return entry["saved_s"]


@pytest.mark.parametrize(
    ("name", "machine", "nodes"), [("resnet50", "dgx-1v", 2), ("resnet50", "p3.16xlarge", 4), ("mlp", "dgx-1v", 1)]
)
def test_one_per_cent_faster_computation_saves_what_a_simulation_shows(name, machine, nodes):
    found = predicted(name, machine, nodes, {}, ALIKE)
    faster = predicted(name, machine, nodes, {"scale_compute": 1 / 1.01}, ALIKE)
    shown = found.iteration_s - faster.iteration_s
    assert saved(found, "computation") == pytest.approx(shown, rel=0.05, abs=1e-5 * found.iteration_s)


def test_one_per_cent_slower_hosts_cost_what_a_simulation_shows():
    found = predicted("mlp@h100-amp-b64", "dgx-h100", 1, {}, ALIKE)
    faster = predicted("mlp@h100-amp-b64", "dgx-h100", 1, {"scale_host": 1 / 1.01}, ALIKE)
    shown = found.iteration_s - faster.iteration_s
    assert 0 < shown <= saved(found, "host") * 1.001  # DDP's own host time is no part of the factor


@pytest.mark.parametrize(("name", "nodes"), [("vgg16@v100-fp32-b32", 4), ("bert-base@v100-fp32-b32", 2)])
def test_one_per_cent_faster_nics_save_what_a_simulation_shows(name, nodes):
    machine = load_topology("p3.16xlarge")
    [rate] = {nic.bandwidth for group in machine.groups for nic in group.template.nics}
    found = predicted(name, machine, nodes, {}, ALIKE)
    faster = predicted(name, with_link_rate(machine, "nic", 1.01 * rate), nodes, {}, ALIKE)
    shown = found.iteration_s - faster.iteration_s
    assert shown > 1e-3 * found.iteration_s
    assert saved(found, "bandwidth between nodes") == pytest.approx(shown, rel=0.1)


def seconds_of(prediction):
    return dict(prediction.critical_path.seconds)


def test_what_a_codec_computes_beside_the_step_is_no_launch():
    plain, coded = (seconds_of(predicted("resnet50", "dgx-1v", 2, given)) for given in ({}, {"compression": "onebit"}))
    assert coded["hooks and copies of DDP"] > 2 * plain["hooks and copies of DDP"]
    assert coded["host launches"] == pytest.approx(plain["host launches"], rel=0.02)


def test_an_optimizer_that_sleeps_is_the_optimizer():
    machine = load_topology("loopback")
    found = predict(
        load_workload("resnet50"), machine, gpus_per_node=2, options=Options(scheme="priority"), band=False, brief=True
    )
    assert seconds_of(found)["optimizer"] == pytest.approx(found.summary.optimizer_s, rel=0.02)
