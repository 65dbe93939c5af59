import contextlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpsim.bucketing import BucketCaps, rebuilt_plan
from ddpsim.common.errors import TraceError, WorkloadError
from ddpsim.simulation.engine import simulate_local
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.workload.files import load_workload
from ddpsim.workload.kineto.iterations import buckets_in
from ddpsim.workload.kineto.workload import import_trace, open_trace, workload_in
from tests.ddpsim.simulation.builders import workload
from tests.ddpsim.workload.kineto_traces import TAIL, Job, written
from tests.profile import examples
from tests.strategies import json_values

HTA = Path(__file__).parents[2] / "data" / "traces" / "hta_resnet50_ddp_a100_rank0of2.json.gz"


def shapes(count, elements=10, name="net@cpu-fp32-b4"):
    return replace(workload(gradients=count, size=elements), name=name)


def imported(folder, job, given_shapes):
    return import_trace(written(folder, job.document()), given_shapes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kineto")


def alone_and_under_ddp(folder, kernels, forward, bucket, wire):
    jobs = (Job(kernels, ddp=ddp, forward_kernel=forward, bucket=bucket, wire=wire) for ddp in (False, True))
    return [imported(folder, job, shapes(len(kernels))).workload for job in jobs]


durations = st.lists(st.floats(1, 400), min_size=1, max_size=9)


@settings(max_examples=examples(60))
@given(kernels=durations, forward=st.floats(1, 2000), bucket=st.integers(1, 4), wire=st.floats(1, 3000))
def test_a_trace_under_ddp_gives_what_the_same_job_gives_alone(folder, kernels, forward, bucket, wire):
    alone, ddp = alone_and_under_ddp(folder, kernels, forward, bucket, wire)
    # Hooks: what DDP does after accumulation is cut out of all that follows.
    assert ddp.gradient_hook_s == pytest.approx(alone.gradient_hook_s, abs=1e-9)
    expected = [(i + 1) * (30 + TAIL) + i * (12 + TAIL) + 12 for i in range(len(kernels))]
    assert alone.gradient_hook_s[0, ::-1] == pytest.approx(np.array(expected) * 1e-6, abs=1e-9)
    for phase in ("forward", "backward", "optimizer"):
        for clock in ("host_s", "device_s"):
            times = [getattr(getattr(workload, phase), clock) for workload in (ddp, alone)]
            assert times[0] == pytest.approx(times[1], abs=2e-9)
    assert ddp.backward.device_s == pytest.approx(np.full(2, sum(kernels) * 1e-6), abs=1e-8)


@settings(max_examples=examples(60))
@given(kernels=durations, forward=st.floats(1, 30), bucket=st.integers(1, 4), wire=st.floats(1, 3000))
def test_completions_on_the_device_are_those_of_the_job_alone(folder, kernels, forward, bucket, wire):
    alone, ddp = alone_and_under_ddp(folder, kernels, forward, bucket, wire)
    # In-order stream: each kernel starts 5 us after its launch or when the one before is done.
    free = start = None
    completions = []
    for index, kernel in enumerate(kernels):
        launch = 10 + index * (30 + 12 + 2 * TAIL)
        begin = launch + 5 if free is None else max(free, launch + 5)
        start, free = begin if start is None else start, begin + kernel
        completions.append(free - start)
    assert alone.gradient_ready_s[0, ::-1] == pytest.approx(np.array(completions) * 1e-6, abs=2e-9)
    assert ddp.gradient_ready_s == pytest.approx(alone.gradient_ready_s, abs=2e-9)


def test_waits_are_found_and_taken_out_of_the_hosts_time(folder):
    ahead = imported(folder, Job([400.0] * 4), shapes(4)).workload
    waiting = imported(folder, Job([400.0] * 4, synchronise=True), shapes(4)).workload
    assert ahead.synchronises == ()
    assert waiting.synchronises == ("after_optimizer",)
    assert waiting.optimizer.host_s == pytest.approx(ahead.optimizer.host_s)


def test_arrivals_are_mapped_by_order_and_confirmed_by_bucket_sizes(folder):
    result = imported(folder, Job([10.0] * 5, ddp=True), shapes(5))
    assert "mapped by the arrival order of net@cpu-fp32-b4, confirmed by 3 allreduces of 20, 20, 10" in " ".join(
        result.notes
    )
    assert result.workload.arrival_order() == [4, 3, 2, 1, 0]
    assert result.workload.name == "net@a100-fp32-b4"
    # A model whose order nobody knows: registration reversed fits, its own order does not.
    odd = shapes(5)
    odd = replace(
        odd,
        parameters=tuple(replace(p, shape=(10 if i else 20,)) for i, p in enumerate(odd.parameters)),
    )
    with pytest.raises(WorkloadError, match="allreduce 2 sums 10 elements, arrivals 4 to 4 hold 20"):
        imported(folder, Job([10.0] * 5, ddp=True), odd)


def test_allreduces_that_are_of_no_bucket_change_nothing(folder):
    plain, beside = (imported(folder, Job([10.0] * 5, ddp=True, others=others), shapes(5)) for others in (False, True))
    assert tuple(note for note in beside.notes if "not DDP's" not in note) == plain.notes
    assert "confirmed by 3 allreduces of 20, 20, 10" in " ".join(beside.notes)
    assert beside.workload.gradient_hook_s == pytest.approx(plain.workload.gradient_hook_s, abs=1e-9)
    assert beside.workload.gradient_ready_s == pytest.approx(plain.workload.gradient_ready_s, abs=2e-9)
    for phase in ("forward", "backward", "optimizer"):
        for clock in ("host_s", "device_s"):
            times = [getattr(getattr(found.workload, phase), clock) for found in (beside, plain)]
            assert times[0] == pytest.approx(times[1], abs=2e-9)


def test_an_integer_bitmap_that_the_trace_does_not_describe_is_of_no_bucket(folder):
    job = Job([10.0] * 4, ddp=True, others=True)
    job.document()
    for event in job.events:
        if event["name"] == "record_param_comms":
            event["args"] = {}
    traced = open_trace(written(folder, {"traceEvents": job.events}), shapes(4))
    assert [len(step.collectives) for step in traced.steps] == [2, 2]


@pytest.mark.parametrize("recorded", [True, False])
def test_gradients_are_of_the_type_that_the_trace_has(folder, recorded):
    job = Job([10.0] * 5, ddp=True, dtype="BFloat16", recorded=recorded)
    result = imported(folder, job, shapes(5))
    assert {parameter.dtype for parameter in result.workload.parameters} == {"bfloat16"}
    assert result.workload.gradient_bytes == 5 * 10 * 2
    assert (result.workload.precision, result.workload.name) == ("bf16", "net@a100-bf16-b4")
    assert "5 of bfloat16 instead of float32 in net@cpu-fp32-b4" in " ".join(result.notes)


def test_a_trace_that_holds_shapes_holds_types_too(folder):
    result = imported(folder, Job([10.0] * 3, dtype="Half", recorded=True), None)
    assert [(p.shape, p.dtype) for p in result.workload.parameters] == [((10,), "float16")] * 3
    assert result.workload.precision == "fp32"


@pytest.mark.parametrize(("kernel", "dtype"), [("ampere_bf16_s16816gemm", "bfloat16"), ("ampere_h16816gemm", None)])
def test_the_type_that_autocast_casts_to_is_that_of_the_kernels(folder, kernel, dtype):
    job = Job([10.0] * 4, recorded=True)
    job.document()
    for event in job.events:
        event["name"] = event["name"].replace("wgrad", kernel)
    workload = import_trace(written(folder, {"traceEvents": job.events}), shapes(4)).workload
    assert (workload.precision, workload.autocast_dtype) == ("amp", dtype)


def test_what_does_not_fit_is_refused(folder):
    with pytest.raises(WorkloadError, match=r"shapes: net@cpu-fp32-b4 has 4 gradients an iteration, .* has 5"):
        imported(folder, Job([10.0] * 5), shapes(4))
    with pytest.raises(TraceError, match="the trace holds no shapes of gradients; give `shapes`"):
        imported(folder, Job([10.0] * 5), None)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "not a Kineto trace: no traceEvents"),
        ({"traceEvents": []}, "is empty: no event of a run"),
        ({"traceEvents": 3}, "traceEvents: int is not a list"),
    ],
)
def test_other_files_are_refused(tmp_path, document, message):
    path = written(tmp_path, document)
    with pytest.raises(TraceError, match=message):
        import_trace(path)
    with pytest.raises(TraceError, match=r"absent\.json: cannot be read: No such file"):
        import_trace(tmp_path / "absent.json")


def test_a_trace_without_gradients_says_so(tmp_path):
    with pytest.raises(TraceError, match="no iteration has gradients"):
        imported(tmp_path, Job([]), None)


def test_the_hta_trace_is_host_bound_and_maps_to_its_five_buckets():
    result = import_trace(HTA, load_workload("resnet50"))
    workload, notes = result.workload, "\n".join(result.notes)
    assert (workload.device, workload.iterations, len(workload.parameters)) == ("A100", 3, 161)
    assert "confirmed by 5 allreduces of 2,049,000, 7,875,584, 6,563,840, 6,637,568, 2,431,040 elements" in notes
    plan = rebuilt_plan(workload.parameters, BucketCaps(), workload.arrival_order())
    assert [len(bucket.parameters) for bucket in plan.buckets] == [2, 15, 12, 51, 81]
    kernels = sum(np.median(getattr(workload, phase).device_s) for phase in ("forward", "backward", "optimizer"))
    assert kernels == pytest.approx(38.5e-3, rel=0.02)
    assert "host-bound: 38." in notes
    # The order in which gradients come is that of the shipped model, in all three iterations.
    assert {tuple(workload.arrival_order(i)) for i in range(3)} == {tuple(load_workload("resnet50").arrival_order())}


def test_halving_the_device_time_of_the_hta_trace_changes_nearly_nothing():
    workload = import_trace(HTA, load_workload("resnet50")).workload
    full, half = (
        np.median([record.iteration_s for record in simulate_local(workload, Options(scale_compute=scale))])
        for scale in (1.0, 0.5)
    )
    slow_host = np.median([r.iteration_s for r in simulate_local(workload, Options(scale_host=0.5))])
    assert half == pytest.approx(full, rel=0.01)
    assert slow_host == pytest.approx(full / 2, rel=0.05)


@settings(max_examples=examples(100))
@given(data=st.data())
def test_a_malformed_trace_is_read_or_refused_in_one_message(folder, data):
    document = Job([20.0] * 3, ddp=True).document(1)
    for _ in range(data.draw(st.integers(1, 3))):
        event = data.draw(st.sampled_from(document["traceEvents"]))
        key = data.draw(st.sampled_from([*event, *event["args"]]))
        target = event["args"] if key in event["args"] else event
        if data.draw(st.booleans()):
            target[key] = data.draw(json_values)
        elif key != "args":
            del target[key]
        if not isinstance(event.get("args"), dict):
            break
    path = written(folder, document)
    with contextlib.suppress(TraceError, WorkloadError):
        traced = open_trace(path, shapes(3))
        workload_in(traced, shapes(3))
        buckets_in(traced)
