"""What a step does on a GPU, on one that is not there: streams, events, and a host that never waits."""

from __future__ import annotations

import time
from typing import Any
from unittest import mock

import pytest
import torch

from ddpexec.ddp.compression import AdaptiveState
from ddpexec.ddp.runtime_stats import RuntimeStats, TimerEvent
from ddpexec.ddp.used_parameters import UsedMap
from ddpexec.groups.process_groups import Communicator
from ddpexec.running.run import Run
from ddpexec.running.settings import RunSettings
from ddpsim.bucketing import BucketCaps
from ddpsim.workload import Workload
from tests.ddpexec.ddp.compression.test_compression import Bucket
from tests.ddpexec.ddp.pretended_gpu import CUDA, MS, Gpu, busy
from tests.ddpexec.pretended_backends import Gloo, Nccl
from tests.ddpexec.small import small_workload


def run_on_gpu(settings: RunSettings, workload: Workload, backend: str) -> Run:
    with (
        mock.patch("ddpexec.ddp.options.devices_of", return_value=(None, None)),
        mock.patch("torch.distributed.get_backend", return_value=backend),
    ):
        return Run(settings, CUDA, workload=workload)


def sent_by(backend: Nccl | Gloo) -> Any:
    return mock.patch.object(Communicator, "all_reduce", lambda _, tensor, number: backend.all_reduce(tensor, number))


def nearest(moments: list[float], to: float) -> float:
    return min(moments, key=lambda moment: abs(moment - to))


@pytest.mark.usefixtures("one_rank", "cuda_is_cpu", "host_time")
@pytest.mark.parametrize("view", [False, True])
def test_a_step_with_nccl_never_makes_the_host_wait_and_is_seen_by_both_clocks(gpu: Gpu, view: bool) -> None:
    workload = small_workload(step_s=4 * MS)
    nccl = Nccl(gpu, 3 * MS)
    settings = RunSettings(iterations=3, caps=BucketCaps(bucket_cap_mb=0.02), gradient_as_bucket_view=view)
    run = run_on_gpu(settings, workload, "nccl")
    before = len(gpu.waits)
    with sent_by(nccl), gpu.reading_tensors_waits():
        begin = time.perf_counter()
        run.train()
    assert gpu.waits[before:] == []
    assert time.perf_counter() - begin > 8 * 32 * MS  # the device was busy for all that, whatever the host did
    for iteration in run.trace().iterations[1:]:
        start = iteration.start_s
        backward = min(gradient.ready_s for gradient in iteration.gradients) - 4 * MS
        for gradient in iteration.gradients:
            ready = float(workload.gradient_ready_s[0, gradient.parameter])
            assert gradient.ready_s - backward == pytest.approx(ready, abs=0.05 * MS)
            assert gradient.hook_s < gradient.ready_s
        for bucket in iteration.buckets:
            assert bucket.launched_s < bucket.ready_s <= bucket.started_s
            assert bucket.finished_s == pytest.approx(nearest(nccl.ends_s, bucket.finished_s), abs=0.05 * MS)
            assert bucket.finished_s <= bucket.written_s
        assert iteration.forward_s == pytest.approx(4 * MS, abs=0.1 * MS)
        assert iteration.backward_compute_s == pytest.approx(24 * MS, abs=0.1 * MS)
        assert iteration.exposed_comm_s == pytest.approx(3 * MS, abs=0.1 * MS)
        assert iteration.end_s - start == pytest.approx(35 * MS, abs=0.2 * MS)


@pytest.mark.usefixtures("one_rank", "cuda_is_cpu")
def test_a_step_with_gloo_waits_once_for_a_bucket_at_the_end_of_backward(gpu: Gpu) -> None:
    gloo = Gloo(gpu, 30 * MS)
    settings = RunSettings(iterations=2, caps=BucketCaps(bucket_cap_mb=0.02))
    run = run_on_gpu(settings, small_workload(step_s=20 * MS), "gloo")
    before, waited = len(gpu.waits), []
    send = gloo.all_reduce
    gloo.all_reduce = lambda *words: waited.append(len(gpu.waits)) or send(*words)  # type: ignore[method-assign]
    with sent_by(gloo), gpu.reading_tensors_waits():
        run.train()
    each = [len(note.buckets) for note in run.observer.notes]
    assert set(gpu.waits[before:]) == {"GlooWork.wait"}
    assert len(gpu.waits[before:]) <= sum(each) == len(waited)
    last = 0
    for buckets in each:
        first, last = last, last + buckets
        assert len(set(waited[first:last])) == 1, "the host waits in the midst of backward"
    for iteration in reversed(run.trace().iterations):
        first, last = last - len(iteration.buckets), last
        ready, finished = ([getattr(each, name) for each in iteration.buckets] for name in ("ready_s", "finished_s"))
        for ready_s, end_s, finished_s in zip(sorted(ready), gloo.ends_s[first:last], sorted(finished), strict=True):
            assert ready_s + 30 * MS <= end_s <= finished_s
        assert iteration.exposed_comm_s >= 30 * MS
        last = first


@pytest.mark.usefixtures("host_time")
def test_the_map_of_used_parameters_is_sent_without_waiting_for_backward(gpu: Gpu) -> None:
    model = mock.Mock(tensors=[torch.ones(2), torch.ones(3)])
    sent: list[torch.Tensor] = []
    used = UsedMap(model, mock.Mock(device_for=lambda _: CUDA, all_reduce=lambda tensor, _: sent.append(tensor)))
    parameter = torch.ones(3)
    parameter.grad = torch.ones(3)
    used.mark(1, parameter)
    busy(20 * MS)
    with gpu.copying_waits(), gpu.reading_tensors_waits():
        used.reduce(0)
    assert gpu.waits == []
    assert sent[0].tolist() == [0, 1]


@pytest.mark.usefixtures("host_time")
def test_runtime_statistics_are_of_the_device_and_wait_for_it_only_where_they_are_read(gpu: Gpu) -> None:
    busy(20 * MS)  # the host is ahead
    stats = RuntimeStats([CUDA])
    for iteration in (1, 2, 3):
        stats.begin(iteration)
        for moment in (TimerEvent.BACKWARD, TimerEvent.COMMUNICATION, TimerEvent.COMPUTED, TimerEvent.COMMUNICATED):
            busy(iteration * int(moment) * MS)
            stats.note(moment)
    assert gpu.waits == []
    data = stats.data
    assert data["iteration"] == 2
    assert data["forward_compute_time"] == pytest.approx(2e6, abs=1e4)
    assert data["backward_compute_time"] == pytest.approx(10e6, abs=1e4)
    assert data["backward_comm_time"] == pytest.approx(14e6, abs=1e4)
    assert data["avg_backward_compute_comm_overlap_time"] == pytest.approx(4.5e6, abs=1e4)


GRADIENTS = {
    1: torch.ones(64).mul_(torch.tensor([1.0, -1.0]).repeat(32)),
    8: torch.linspace(-1, 1, 64),
    16: torch.cat([torch.ones(1) * 1000, torch.ones(63)]),
    32: torch.full((64,), float("inf")),
}


@pytest.mark.usefixtures("host_time")
@pytest.mark.parametrize("bits", GRADIENTS)
def test_precision_on_a_gpu_is_chosen_when_the_bucket_starts_again(gpu: Gpu, bits: int) -> None:
    bucket = Bucket([GRADIENTS[bits]], [GRADIENTS[bits]])
    on_cpu, on_gpu = (AdaptiveState(0.006, every=2) for _ in range(2))
    for state in (on_cpu, on_gpu):
        assert state.start(bucket) == 32
    on_cpu.choose(bucket, bucket.buffer())
    there = mock.patch.object(torch.Tensor, "is_cuda", property(lambda _: True))
    busy(5 * MS)
    with there, gpu.copying_waits(), gpu.reading_tensors_waits():
        on_gpu.choose(bucket, bucket.buffer())
        assert gpu.waits == []
    assert [state.start(bucket) for state in (on_cpu, on_gpu)] == [bits, bits]
    on_gpu.choose(bucket, bucket.buffer())
    assert on_gpu.start(Bucket([torch.ones(3)], [torch.ones(3)])) == 32
