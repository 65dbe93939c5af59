"""What one per cent more of a resource saves, told from the graph, is what a full simulation with more of it shows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ddpsim import BucketCaps, Calibration, Options, Prediction, load_topology, load_workload
from ddpsim.planning.bound import bound_of
from ddpsim.prediction.models import Model
from ddpsim.prediction.path import Sensitivity, format_helps_most
from ddpsim.prediction.predict import predict
from ddpsim.prediction.sensitivities import (
    LINKS,
    THREADS,
    resources_of,
    sensitivities_of,
)
from ddpsim.simulation.graph import BETWEEN_NODES, ENDS, INSIDE_NODE
from ddpsim.simulation.job import Job
from ddpsim.topology.link_rates import NIC, with_link_rate

JOBS: tuple[tuple[str, str, int, dict[str, Any]], ...] = (
    ("resnet50", "dgx-1v", 2, {}),
    ("vgg16@v100-fp32-b32", "p3.16xlarge", 4, {}),
    ("bert-base@v100-fp32-b32", "p3.16xlarge", 2, {}),
    ("bert-base@a100-amp-b32", "dgx-a100", 2, {}),
    ("gpt2-small@a100-amp-b8", "dgx-1v", 1, {}),
    ("mlp@h100-amp-b64", "dgx-h100", 1, {}),
    ("resnet50", "4x1080ti-pcie", 1, {}),
    ("bert-base@a100-amp-b32", "dgx-a100", 2, {"scheme": "fsdp2"}),
    ("bert-base@a100-amp-b32", "dgx-a100", 4, {"scheme": "hsdp:8"}),
    ("vgg16@v100-fp32-b32", "p3.16xlarge", 2, {"process_groups": 2}),
    ("resnet50", "dgx-1v", 2, {"backend": "gloo"}),
    ("mlp", "lab-flat", 3, {}),
)
NEAR = 2e-4
"""Share of the step by which a retimed saving may miss the simulated one: a fiftieth of what one per cent is."""


def predicted(name: str, machine: Any, nodes: int, given: dict[str, Any]) -> Prediction:
    topology = load_topology(machine) if isinstance(machine, str) else machine
    return predict(Job(load_workload(name), topology, nodes=nodes, options=Options(**given)), band=False)


def shown(found: Prediction, resource: str) -> float:
    """Return what a simulation shows that is built anew, under the constants of more of `resource`."""
    from ddpsim.prediction.periods import with_assumptions

    more = resources_of(found, 1.01)
    if resource == THREADS:
        others = [name for name in ("latency", *LINKS) if name in more]
        return max(0.0, shown(found, "communication") - sum(shown(found, name) for name in others))
    return found.iteration_s - with_assumptions(found.run, more[resource]).iteration_s


@pytest.mark.parametrize(("name", "machine", "nodes", "given"), JOBS, ids=str)
def test_what_is_retimed_is_what_a_simulation_under_the_changed_constant_shows(
    name: str, machine: str, nodes: int, given: dict[str, Any]
) -> None:
    found = predicted(name, machine, nodes, given)
    told = sensitivities_of(found)
    assert [each.saved_s for each in told] == sorted((each.saved_s for each in told), reverse=True)
    assert {"computation", "host", "latency"} < {each.resource for each in told}
    for each in told:
        near = 3 * NEAR if each.resource == THREADS else NEAR
        assert each.saved_s == pytest.approx(shown(found, each.resource), abs=near * found.iteration_s), each
    assert sum(each.saved_s for each in told) == pytest.approx(0.0099 * found.iteration_s, rel=0.1)
    assert sum(each.retimed for each in told) >= (0 if "process_groups" in given else 2)


@pytest.mark.parametrize(
    ("given", "resource"),
    [
        ({"input_stage": "load=400ms,workers=2"}, "input"),
        ({"input_stage": "load=90ms,copy=2GB"}, "input"),
        ({"stragglers": {2: 3.0}}, "rank 2"),
    ],
)
def test_what_binds_is_in_the_table_which_sums_to_one_per_cent(given: dict[str, Any], resource: str) -> None:
    found = predicted("resnet50", "dgx-a100", 1, given)
    told = sensitivities_of(found)
    assert told[0].resource == resource
    assert sum(each.saved_s for each in told) == pytest.approx(0.0099 * found.iteration_s, rel=0.02)


@pytest.mark.parametrize("machine", ["8xl40s-pcie", "g6.48xlarge", "p3.8xlarge", "mi300x-8"])
def test_one_gpu_a_node_is_bound_by_what_is_in_the_table(machine: str) -> None:
    topology = load_topology(machine)
    found = predict(Job(Model.of("vgg16").on(topology), topology, nodes=2, gpus_per_node=1), band=False)
    told = sensitivities_of(found)
    assert sum(each.saved_s for each in told) == pytest.approx(0.0099 * found.iteration_s, rel=0.05)
    causes = {"NIC rate": BETWEEN_NODES, THREADS: ENDS, "PCIe rate": INSIDE_NODE}
    assert next(iter(found.critical_path.seconds)) in (causes.get(told[0].resource), "backward")


def test_threads_of_sockets_that_bind_are_no_link() -> None:
    """A port of 25 GB/s whose sockets' one thread moves 5: a faster port or slot saves nothing."""
    topology = load_topology("8xl40s-pcie")
    found = predict(Job(Model.of("vgg16").on(topology), topology, nodes=2, gpus_per_node=1), band=False)
    saves = {each.resource: each.saved_s for each in sensitivities_of(found)}
    assert saves[THREADS] > 100 * max(abs(saves[name]) for name in ("NIC rate", "PCIe rate"))
    assert INSIDE_NODE not in found.critical_path.seconds
    assert bound_of(found).link is None


def test_process_groups_are_simulated() -> None:
    workload, machine = load_workload("mlp@gp100-fp32-b64"), load_topology("p3.16xlarge")
    found = predict(Job(workload, machine, nodes=2, options=Options(process_groups=2)))
    assert not any(each.retimed for each in sensitivities_of(found))


def saved(found: Prediction, resource: str) -> float:
    [entry] = [each for each in sensitivities_of(found) if each.resource == resource]
    return entry.saved_s


@pytest.mark.parametrize(("name", "nodes"), [("vgg16@v100-fp32-b32", 4), ("bert-base@v100-fp32-b32", 2)])
def test_a_machine_whose_file_has_faster_nics_saves_as_much(name: str, nodes: int) -> None:
    machine = load_topology("p3.16xlarge")
    [rate] = {nic.bandwidth for group in machine.groups for nic in group.template.nics}
    found = predicted(name, machine, nodes, {})
    faster = predicted(name, with_link_rate(machine, NIC, 1.01 * rate), nodes, {})
    difference = found.iteration_s - faster.iteration_s
    assert difference > 1e-3 * found.iteration_s
    assert saved(found, "NIC rate") == pytest.approx(difference, rel=0.02)


def test_options_that_scale_computation_save_as_much() -> None:
    found = predicted("resnet50", "p3.16xlarge", 4, {})
    faster = predicted("resnet50", "p3.16xlarge", 4, {"scale_compute": 1 / 1.01})
    assert saved(found, "computation") == pytest.approx(found.iteration_s - faster.iteration_s, rel=0.02)


def test_constants_of_shorter_latencies_save_as_much() -> None:
    priors = Calibration.priors("nccl")
    latencies = {name: each.value / 1.01 for name, each in priors.constants.items() if _is_latency(name)}
    shorter = priors.with_values(latencies, source="test")
    workload, machine = load_workload("resnet50"), load_topology("dgx-1v")
    # A tree fills with pieces first, which counts as latency and is none of a constant; a ring does not.
    scaled: Any = {"scale_compute": 0.01, "scale_host": 0.01, "algorithm": "ring"}
    small = Options(caps=BucketCaps(bucket_cap_mb_list=(0.5,)), **scaled)
    asked = Job(workload, machine, nodes=16, options=small)
    found = predict(asked, band=False)
    faster = predict(replace(asked, calibration=shorter), band=False)
    difference = found.iteration_s - faster.iteration_s
    assert difference > 1e-3 * found.iteration_s
    assert saved(found, "latency") == pytest.approx(difference, rel=0.05)


def _is_latency(name: str) -> bool:
    return ".ddp." not in name and (name.endswith("_s") or ".nic.latency." in name)


def test_where_nothing_is_sent_no_link_and_no_latency_is_asked_for() -> None:
    found = predicted("mlp", "dgx-1v", 1, {"comm": "noop"})
    assert {each.resource for each in sensitivities_of(found)} == {"computation", "host"}


def test_the_table_names_what_saves_something_the_most_first() -> None:
    told = [Sensitivity("computation", 1e-3, retimed=True), Sensitivity("host", 0.0, retimed=True)]
    assert format_helps_most(told, 0.1) == [
        "what would help most: time saved per step by each resource being one per cent faster:",
        "  resource     saves  of the step",
        "  computation   1 ms       1.00 %",
    ]
    assert format_helps_most(told[1:], 0.1) == []
    assert Sensitivity.read({"sensitivities": [each.document() for each in told]}) == tuple(told)
