import pytest

from ddpsim.workload.kineto.iterations import buckets_in, read_iterations
from ddpsim.workload.kineto.workload import open_trace
from tests.ddpsim.workload.kineto_traces import Job, written
from tests.ddpsim.workload.test_kineto import shapes


def read(folder, job, steps=2):
    return read_iterations(open_trace(written(folder, job.document(steps)), shapes(len(job.kernels))))


def test_buckets_are_where_the_job_put_them(tmp_path):
    # Launches far apart: nothing queues, so every time is known from the job's own figures.
    iterations = read(tmp_path, Job([20.0] * 4, ddp=True, bucket=2, wire=30.0), steps=3)
    assert len(iterations) == 3
    for iteration in iterations:
        assert [bucket.parameters for bucket in iteration.buckets] == [(3, 2), (1, 0)]
        assert [bucket.size_bytes for bucket in iteration.buckets] == [80, 80]
        for bucket in iteration.buckets:
            # The launch reaches the device 20 us after the call: 15 us inside it, 5 us of lag.
            assert bucket.started_s - bucket.launched_s == pytest.approx(20e-6)
            assert bucket.finished_s - bucket.started_s == pytest.approx(30e-6)
            assert bucket.ready_s <= bucket.started_s
            assert bucket.wire_s == pytest.approx(bucket.started_s)
        # 90 us of the host, and its last kernel 3 us behind.
        assert iteration.buffer_broadcast_s == pytest.approx(93e-6)
        assert iteration.host_s["forward"] == pytest.approx(100e-6)
        assert iteration.iteration_s == pytest.approx(
            iteration.forward_s
            + iteration.backward_compute_s
            + iteration.exposed_comm_s
            + iteration.buffer_broadcast_s
            + iteration.ddp_overhead_s
            + iteration.optimizer_s
            + iteration.input_s
        )


def test_what_a_collective_takes_beyond_the_fastest_is_skew(tmp_path):
    job = Job([20.0] * 4, ddp=True, bucket=2, wire=100.0)
    document = job.document(3)
    kernels = [e for e in document["traceEvents"] if e["name"] == "ncclKernel_AllReduce"]
    kernels[1]["dur"] = 40.0  # of the same size: the peers were there already
    seen = buckets_in(open_trace(written(tmp_path, document), shapes(4)))
    assert seen[0]["wire_s"] == pytest.approx(40e-6)
    assert seen[0]["skew_s"] == pytest.approx(60e-6)
    assert [bucket["parameters"] for bucket in seen] == [2, 2]


def test_exposed_is_what_outlasts_the_computation(tmp_path):
    hidden, exposed = (
        read(tmp_path, Job([20.0] * 4, ddp=True, bucket=2, wire=wire))[0].exposed_comm_s for wire in (1.0, 900.0)
    )
    assert hidden < 40e-6
    assert exposed - hidden == pytest.approx(2 * 900e-6, rel=0.2)


def test_a_trace_without_ddp_has_no_buckets(tmp_path):
    assert buckets_in(open_trace(written(tmp_path, Job([20.0] * 4).document(2)), shapes(4))) == []


def test_buckets_of_bfloat16_are_half_as_large(tmp_path):
    first, _ = read(tmp_path, Job([20.0] * 4, ddp=True, dtype="BFloat16"))
    assert [bucket.size_bytes for bucket in first.buckets] == [40, 40]
