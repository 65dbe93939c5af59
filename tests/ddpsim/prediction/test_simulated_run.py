"""A run under other buckets: what it tells is what a run that is resolved anew does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest

from ddpsim import BucketCaps, Options, load_topology, load_workload, plan
from ddpsim.bucketing.plan import custom_plan
from ddpsim.prediction.models import Model
from ddpsim.prediction.periods import periods_under, with_assumptions
from ddpsim.prediction.predict import predict
from ddpsim.prediction.simulated_run import SimulatedRun
from ddpsim.simulation.communication import Assumptions
from ddpsim.simulation.engine import run_resolved
from ddpsim.simulation.job import Job
from ddpsim.simulation.resolve import resolve
from tests.ddpsim.simulation.builders import workload

ROUNDING = 1e-12
GROUPS = [(9, 8, 7), (6, 5), (4, 3, 2, 1, 0)]


@pytest.mark.parametrize(
    "given",
    [
        {}, {"accumulate": 2}, {"find_unused_parameters": True}, {"compression": "fp16"}, {"process_groups": 2},
        {"stragglers": {1: 1.5}}, {"comm": "noop"}, {"scheme": "priority"}, {"order": "drift:0.9:2"},
        {"jitter": 0.05, "iterations": 3}, {"fidelity": "closed"},
    ],
)  # fmt: skip
@pytest.mark.parametrize("made", [{}, {"device": "V100", "host_share": 0.9}])
def test_other_buckets_take_what_they_take_in_a_run_of_their_own(given: dict[str, Any], made: dict[str, Any]) -> None:
    source = workload(gradients=10, size=300_000, buffers=2, **made)
    machine, nodes = (load_topology("dgx-1v"), 2) if made else (load_topology("lab-flat"), 3)
    asked = Options(**given)
    run = predict(Job(source, machine, nodes=nodes, options=asked), local_s=1.0, band=False).run
    plan = custom_plan(source.parameters, GROUPS) if asked.order is None else None
    for caps, other in ((BucketCaps(bucket_cap_mb=1.0), None), (BucketCaps(), plan)):
        options = replace(asked, caps=caps, plan=other)
        right = predict(Job(source, machine, nodes=nodes, options=options), local_s=1.0, band=False)
        buckets, period_s = run.with_buckets(caps, other).plan_and_period()
        assert period_s == pytest.approx(right.iteration_s, rel=ROUNDING)
        assert buckets == right.plan


def test_a_job_is_resolved_once_for_all_its_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddpsim.simulation.engine.resolve", counting := Mock(wraps=resolve))
    run = predict(Job(workload(), load_topology("lab-flat")), local_s=1.0, band=False).run
    for cap in (0.1, 1.0, 10.0):
        run.with_buckets(BucketCaps(bucket_cap_mb=cap)).plan_and_period()
    assert counting.call_count == 1


def test_caps_that_make_the_same_buckets_are_simulated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    run = predict(Job(workload(), load_topology("lab-flat")), local_s=1.0, band=False).run
    monkeypatch.setattr("ddpsim.prediction.simulated_run.run_resolved", counting := Mock(wraps=run_resolved))
    told = [run.with_buckets(BucketCaps(bucket_cap_mb=cap)).plan_and_period() for cap in (900.0, 1e3)]
    assert counting.call_count == 1
    assert told[0][1] == told[1][1]
    assert str(told[0][0].torch) != str(told[1][0].torch)


@pytest.mark.parametrize("fidelity", ["flow", "closed"])
def test_a_run_that_has_not_settled_is_told_alike_by_all(fidelity: str) -> None:
    """Its iterations still grow by 2e-5 of the step after those that a short run counts."""
    source, machine = load_workload("vgg16@h100-bf16-b32"), load_topology("dgx-2")
    options = Options(fidelity=fidelity)  # type: ignore[arg-type]
    whole = predict(Job(source, machine, nodes=1, gpus_per_node=2, options=options), band=False)
    one, other = (each.iteration_s for each in whole.trace.of_rank(0))
    assert other / one - 1 > 1e-5
    found = plan(source, [machine], nodes=[1], gpus_per_node=2, options=options)
    assert found.rows[0].document()["default_iteration_s"] == whole.iteration_s
    asked = replace(options, plan=whole.plan)
    assert (
        predict(Job(source, machine, nodes=1, gpus_per_node=2, options=asked), band=False).iteration_s
        == whole.iteration_s
    )
    run = SimulatedRun.of(Job(source, machine, 1, 2, options, None))
    assert run.plan_and_period()[1] == whole.iteration_s


@pytest.mark.parametrize(
    "options",
    [
        {"gradient_as_bucket_view": True},
        {"gradient_as_bucket_view": True, "find_unused_parameters": True},
        *({"scheme": name} for name in ("naive", "flat", "zero2", "fsdp2", "dear", "horovod", "averaging:2")),
    ],
    ids=str,
)
@pytest.mark.parametrize(("name", "machine"), [("vgg16@h100-bf16-b32", "dgx-h100"), ("gpt2-small", "loopback")])
def test_one_rank_waits_for_no_communication(name: str, machine: str, options: dict[str, Any]) -> None:
    source = load_workload(name)
    found = predict(
        Job(source, load_topology(machine), nodes=1, gpus_per_node=1, options=Options(**options)), band=False
    )
    assert found.summary.exposed_comm_s == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("exact", [False, True])
def test_a_run_that_settles_late_has_the_same_period_where_nothing_changes(exact: bool) -> None:
    """A host that falls behind a fast GPU by less each time settles at the fourth iteration, not at the third."""
    topology, options = load_topology("dgx-1v"), Options(scale_compute=0.1)
    found = predict(Job(Model.of("vgg16").on(topology), topology, nodes=2, options=options), band=False)
    [same] = periods_under(found, [Assumptions(None)], exact=exact)
    assert same.iteration_s == pytest.approx(found.iteration_s, rel=1e-9)
    assert with_assumptions(found.run, Assumptions(None)).iteration_s == pytest.approx(found.iteration_s, rel=1e-9)
