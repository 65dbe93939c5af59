"""What users hold compares by its values, and shows itself in one short line."""

from __future__ import annotations

import pytest

from ddpsim.bucketing import BucketCaps
from ddpsim.collectives.calibration import Calibration
from ddpsim.common.errors import InputError
from ddpsim.planning.planner import plan
from ddpsim.planning.sweep import sweep
from ddpsim.prediction.predict import predict
from ddpsim.simulation.job import Job
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.topology.spec import load_topology
from ddpsim.workload.files import load_workload


def test_equal_predictions_are_equal() -> None:
    one, other = (predict(Job(load_workload("resnet50"), load_topology("dgx-1v"))) for _ in range(2))
    assert one == other
    assert one.workload == other.workload
    assert one != predict(Job(load_workload("resnet50"), load_topology("dgx-1v"), nodes=2))
    assert one.workload != load_workload("bert-base")
    assert one != "another"


def test_representations_are_short() -> None:
    workload, machine = load_workload("resnet50"), load_topology("dgx-1v")
    found = predict(Job(workload, machine, options=Options(iterations=1)))
    report = plan(workload, [machine], caps=[BucketCaps(bucket_cap_mb=10)])
    priors = Calibration.priors("nccl")
    held = [workload, machine, found, found.trace, found.trace.iterations[0], found.plan, found.placement, found.run]
    for each in [*held, found.summary, found.options, report, report.rows[0], priors]:
        assert len(repr(each)) < 600, type(each)
        assert type(each).__name__ in repr(each)
        assert "\n" not in repr(each)
    assert repr(report).startswith("<PlanReport: 1 row, ")


def test_records_are_rows_of_a_table() -> None:
    workload, machine = load_workload("mlp"), load_topology("dgx-1v")
    found = list(sweep(workload, machine, nodes=[1, 2], caps=[BucketCaps(bucket_cap_mb=1), BucketCaps()]))
    rows = [row for each in found for row in each.records()]
    report = plan(workload, [machine], nodes=[1, 2], caps=[BucketCaps(bucket_cap_mb=10)])
    assert [(row["nodes"], row["iteration_s"]) for row in rows] == [(each.nodes, each.iteration_s) for each in found]
    assert [row["gain"] for row in report.records()] == [row.document()["gain"] for row in report.rows]
    for table in (rows, report.records()):
        assert len({tuple(row) for row in table}) == 1
        assert all(value is None or isinstance(value, str | int | float) for row in table for value in row.values())


@pytest.mark.parametrize("what", ["nodes", "caps"])
def test_an_empty_sweep_says_what_is_missing(what: str) -> None:
    given = {"nodes": [1], "caps": [BucketCaps()], what: []}
    with pytest.raises(InputError, match=f"{what}: nothing is given"):
        sweep(load_workload("resnet50"), load_topology("dgx-1v"), **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [{"topologies": []}, {"nodes": []}, {"caps": []}])
def test_an_empty_plan_says_what_is_missing(given: dict[str, list[int]]) -> None:
    with pytest.raises(InputError, match="nothing is given"):
        plan(load_workload("resnet50"), **({"topologies": [load_topology("dgx-1v")]} | given))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["nodes", "gpus_per_node"])
def test_a_count_that_is_no_whole_number_is_refused_by_name(name):
    with pytest.raises(InputError, match=rf"^{name}: '1.5' is no count; give a whole number"):
        predict(Job(load_workload("mlp"), load_topology("dgx-1v"), **{name: 1.5}))
