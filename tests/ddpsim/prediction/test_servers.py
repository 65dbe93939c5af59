"""Servers in a prediction: they train nothing, and ranks that go alone have one step only where they are alike."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddpsim import Options, compare, load_workload, save_workload
from ddpsim.prediction.predict import predict
from ddpsim.report.wording import rate
from ddpsim.simulation.job import Job
from ddpsim.topology.spec import load_topology, parse_topology


def test_samples_are_of_the_ranks_that_train_wherever_they_are_said() -> None:
    workload, machine = load_workload("resnet50"), load_topology("p3.16xlarge")
    options = Options(scheme="parameter-server:servers=4")
    made = predict(Job(workload, machine, nodes=1, options=options), band=False)
    expected = 4 * workload.batch_size / made.iteration_s
    assert made.document()["samples_per_s"] == pytest.approx(expected)
    assert f"{expected:,.0f}" in rate(made)
    assert f"{expected:,.0f}" in made._repr_html_()
    row = compare([workload], [machine], nodes=[1], options=options).rows[0]
    assert row.samples_per_s[0] == pytest.approx(4 * workload.batch_size / row.step_s[0])


MIXED = """
name: mixed
nodes: {new: 1, old: 2}
templates: {new: p3.16xlarge, old: {machine: p3.16xlarge, workload: SLOWER}}
fabric: {kind: flat}
"""


def test_samples_of_unlike_nodes_are_of_each_nodes_own_batch(tmp_path: Path) -> None:
    workload, slower = load_workload("mlp"), tmp_path / "slower.json"
    save_workload(replace(workload, batch_size=3), slower)
    machine = parse_topology(MIXED.replace("SLOWER", str(slower)), "mixed")
    made = predict(Job(workload, machine, nodes=3, gpus_per_node=2), band=False)
    assert made.samples == 2 * workload.batch_size + 4 * 3
    served = predict(
        Job(workload, machine, nodes=3, gpus_per_node=2, options=Options(scheme="parameter-server:servers=3")),
        band=False,
    )
    assert served.samples == 2 * workload.batch_size + 3
    assert served.document()["samples_per_s"] == pytest.approx(served.samples / served.iteration_s)


@pytest.mark.parametrize(
    "unlike", [{"stragglers": {1: 2.0}}, {"straggling": "some:0.3:2"}, {"jitter": 0.2}], ids=["one", "some", "jitter"]
)
def test_ranks_that_go_alone_and_are_unlike_have_each_a_step(unlike: dict[str, Any]) -> None:
    workload, machine = load_workload("resnet50"), load_topology("p3.16xlarge")
    options = Options(scheme="parameter-server:servers=4,async", **unlike)
    made = predict(Job(workload, machine, nodes=1, options=options), band=False)
    steps = made.rank_steps_s
    assert steps is not None
    assert list(steps) == [0, 1, 2, 3]
    assert made.iteration_s == pytest.approx(max(steps.values()))
    assert min(steps.values()) < 0.99 * max(steps.values())
    for slow, factor in options.stragglers.items():
        assert steps[slow] == max(steps.values()) > 0.75 * factor * steps[0]
    document = made.document()
    assert document["rank_steps_s"] == {str(rank): seconds for rank, seconds in steps.items()}
    assert document["samples_per_s"] == pytest.approx(sum(workload.batch_size / s for s in steps.values()))
    assert document["servers"]["staleness_mean"] > 0
    together = Options(scheme="parameter-server:servers=4", **unlike)
    waiting = predict(Job(workload, machine, nodes=1, options=together), band=False)
    assert waiting.rank_steps_s is None
    # Nobody waits for the slowest, so that more is trained.
    assert made.samples_per_s > waiting.samples_per_s
