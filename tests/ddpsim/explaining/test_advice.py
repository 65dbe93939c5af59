"""What other buckets gain is told with all that the trace leaves open, and not at all where it rests on nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddpsim.bucketing import BucketCaps, Parameter
from ddpsim.bucketing.plan import plan_buckets
from ddpsim.cli.app import run
from ddpsim.cli.explain_text import text
from ddpsim.explaining import predicted
from ddpsim.explaining.basis import PredictionBasis
from ddpsim.explaining.bucket_origin import bucket_origin
from ddpsim.explaining.explain import explain
from ddpsim.explaining.files import rank_from_trace, read_kineto_rank, run_caps
from ddpsim.explaining.late import late_rank
from ddpsim.explaining.machine import machine_of
from ddpsim.explaining.predicted import predict_traced
from ddpsim.explaining.splits import splits_of, wire_times
from ddpsim.planning.planner import plan
from ddpsim.trace.json import write_trace
from ddpsim.trace.metrics import seconds_by_part
from tests.ddpsim.explaining.seen_ranks import ranks
from tests.ddpsim.workload.kineto_traces import Job, written
from tests.traces import example_trace


def traced(tmp_path, bucket, gradients=12):
    """Return the rank, its basis and its machine: gradients of 4 MiB, so many in a bucket."""
    job = Job([600.0] * gradients, ddp=True, recorded=True, bucket=bucket, elements=1 << 20, wire=2000.0)
    rank = read_kineto_rank(written(tmp_path, job.document(steps=6)), None, lead=True).numbered(0)
    return rank, rank.basis, machine_of(2, rank.device, wire_times(splits_of([rank])), "nccl")


def advised(basis, machine, parts):
    """Return the explanation of a step that the prediction meets, so that it advises."""
    step_s = predict_traced(basis, machine, 1.0, parts, "nccl", advise=False).step_s
    return predict_traced(basis, machine, step_s, parts, "nccl")


def test_messages_of_one_size_leave_open_what_other_sizes_take(tmp_path):
    rank, basis, machine = traced(tmp_path, bucket=6)
    assert machine.one_size.size_bytes == 24 << 20
    told = advised(basis, machine, seconds_by_part(rank.iterations[0]))
    (doubt,) = told.gain_doubts
    middle, low, high = told.best_gain
    assert doubt.low <= middle <= doubt.high
    assert doubt.high - doubt.low > 0.01
    assert low <= doubt.low
    assert high >= doubt.high
    sure = advised(basis, replace(machine, one_size=None), seconds_by_part(rank.iterations[0]))
    assert high - low > sure.best_gain[2] - sure.best_gain[1]
    assert told.document()["gain_doubts"][0]["remedy"].startswith("trace a few steps")


def test_buckets_are_planned_at_the_pace_that_was_traced(tmp_path, monkeypatch):
    rank, basis, machine = traced(tmp_path, bucket=6)
    asked = []
    monkeypatch.setattr(predicted, "best_plan", lambda *given, **named: asked.append(named) or plan(*given, **named))
    told = advised(basis, machine, seconds_by_part(rank.iterations[0]))
    assert [named["options"].keep_pace for named in asked] == [True]
    assert told.row.default.workload.device == told.prediction.workload.device


def test_messages_of_sizes_far_apart_tell_them_apart(tmp_path):
    rank, basis, machine = traced(tmp_path, bucket=5)
    assert machine.one_size is None
    assert advised(basis, machine, seconds_by_part(rank.iterations[0])).gain_doubts == ()


def test_no_option_is_added_that_changes_nothing(tmp_path):
    rank, basis, machine = traced(tmp_path, bucket=6)
    assert not basis.workload.buffers
    told = advised(replace(basis, broadcasts=False), machine, seconds_by_part(rank.iterations[0]))
    assert "broadcast_buffers" not in told.row.best.plan.torch


def test_a_late_rank_holds_advice_back(tmp_path):
    rank, basis, machine = traced(tmp_path, bucket=6)
    found = replace(
        explain(tmp_path / "rank0.json"), predicted=advised(basis, machine, seconds_by_part(rank.iterations[0]))
    )
    assert any("buckets" in line for line in found.advice)
    late = late_rank(ranks(late={1: {"input": 0.020}}))
    held = replace(found, late=late, predicted=replace(found.predicted, row=None))
    assert any("no advice on buckets" in line and "rank 1" in line for line in held.advice)
    assert not any("other buckets gain" in line or "keep the buckets" in line for line in held.advice)


MODEL = [Parameter(f"p{n}", (size,), "float32") for n, size in enumerate([300_000, 100_000, 400_000, 200_000, 250_000])]


def basis_with(caps, order=(4, 3, 2, 1, 0)):
    groups = tuple(tuple(group) for group in plan_buckets(MODEL, caps, "rebuilt", list(order)).groups())
    workload = type("W", (), {"parameters": MODEL})()
    return PredictionBasis(workload, groups, tuple(order), {}, 0.0, False)


@pytest.mark.parametrize("cap", [0.9, 1.2, 2.0, 3.0])
def test_the_caps_named_are_all_that_give_the_buckets(cap):
    asked = basis_with(BucketCaps(bucket_cap_mb=cap))
    said = bucket_origin(asked)
    assert "bucket_cap_mb above" in said
    words = said.replace(",", "").split()
    low = float(words[words.index("above") + 1])
    assert low < cap
    same = basis_with(BucketCaps(bucket_cap_mb=low * 1.001 + 1e-3)).groups
    assert same == asked.groups
    if "to" in words:
        high = float(words[words.index("to", words.index("above")) + 1])
        assert cap <= high * 1.001
        assert basis_with(BucketCaps(bucket_cap_mb=high * 1.002)).groups != asked.groups


def test_the_cap_of_the_run_is_named_where_it_is_known():
    caps = BucketCaps(bucket_cap_mb=1.2)
    assert bucket_origin(replace(basis_with(caps), caps=caps)).startswith(
        "bucket_cap_mb=1.2, with which the job was run"
    )


def test_a_bucket_a_gradient_is_given_by_caps_from_nothing_on():
    smallest = min(each.size_bytes for each in MODEL) / (1 << 20)
    assert bucket_origin(basis_with(BucketCaps(bucket_cap_mb=0))).startswith(
        f"bucket_cap_mb from 0 up to {smallest:.4g} MiB"
    )


@pytest.mark.parametrize(
    ("provenance", "caps"),
    [
        ({"options": {"bucket_cap_mb": 1.5}, "every": 1}, BucketCaps(bucket_cap_mb=1.5)),
        ({"options": {"bucket_cap_mb": None}, "every": 1}, BucketCaps()),
        ({"plan": {"torch": "DistributedDataParallel(model, bucket_cap_mb=5)"}}, BucketCaps(bucket_cap_mb=5)),
        ({"plan": {"torch": "# none"}}, None),
        ({"plan": {"torch": "no call"}}, None),
        ({}, None),
    ],
)
def test_a_recorded_run_says_its_cap(provenance, caps):
    trace = replace(example_trace(), provenance=provenance)
    assert run_caps(rank_from_trace(trace, 0, "rank0.json").options) == caps


def test_torchs_default_is_named_with_what_else_gives_its_buckets():
    said = bucket_origin(basis_with(BucketCaps()))
    assert said.startswith("torch's default, [1, 25] MiB, or bucket_cap_mb_list with its first cap above")


@pytest.mark.parametrize(("steps", "said"), [(1, True), (2, True), (3, False)])
def test_too_few_steps_are_told_instead_of_nobody(tmp_path, steps, said):
    write_trace(example_trace(world_size=2, iterations=steps), tmp_path)
    found = explain(tmp_path)
    assert (found.no_verdict_reason is not None) == said
    assert ("no rank is late" in text(found)) != said
    assert ("too few steps were seen" in text(found)) == said
    assert found.document()["late_untold"] == found.no_verdict_reason


def test_a_loop_that_stamped_one_step_in_twenty_is_told_to_stamp_all(tmp_path):
    trace = example_trace(world_size=2, iterations=1)
    provenance = {**trace.provenance, "every": 20}
    write_trace(replace(trace, provenance=provenance), tmp_path)
    assert "trace with every=1" in explain(tmp_path).no_verdict_reason


def test_the_text_says_why_an_excess_of_the_table_names_nobody_and_what_the_collectives_times_are(tmp_path):
    write_trace(example_trace(world_size=2, iterations=4), tmp_path)
    found = explain(tmp_path)
    assert "\nno rank is late\n" in text(found)
    assert found.document()["late_unsure"] is None
    unsure = replace(found, uncertain_excess="rank 1 takes 9 ms more in forward")
    assert "\nno rank is late: rank 1 takes 9 ms more in forward\n" in text(unsure)
    assert unsure.document()["late_unsure"] == unsure.uncertain_excess
    head = text(found).partition("\ncollectives, ms: ")[2].partition("\ncollective ")[0]
    assert "on rank 0" in head
    assert "median over steps" in head
    assert "for the last rank, mean over ranks" in head


def test_what_a_recorded_run_lacks_for_a_prediction_is_told_with_the_option(tmp_path, capsys):
    write_trace(example_trace(world_size=2, iterations=4), tmp_path)
    assert run(["explain", str(tmp_path)]) == 0
    said = capsys.readouterr().out.replace("\n  ", " ")
    assert "not predicted: --shapes: " in said
    assert "writes it: --shapes capture.json" in said
    assert "`shapes=capture.json`" in explain(tmp_path).unpredicted
