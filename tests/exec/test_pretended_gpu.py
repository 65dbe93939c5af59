"""What ddpexec does on a GPU, on one that is not there: both clocks, streams, and a host that never waits."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from ddpexec.capture import Settings as CaptureSettings  # noqa: E402
from ddpexec.capture import capture_model  # noqa: E402
from ddpexec.clock import CudaClock, _exchange  # noqa: E402
from ddpexec.compression import Adaptive, measure  # noqa: E402
from ddpexec.copies import Copies  # noqa: E402
from ddpexec.device_pass import DevicePass  # noqa: E402
from ddpexec.launched import Launched  # noqa: E402
from ddpexec.pacing import spinner  # noqa: E402
from ddpexec.process_groups import Communicator, FinishedWork  # noqa: E402
from ddpexec.recorder import Recorder  # noqa: E402
from ddpexec.run import Run  # noqa: E402
from ddpexec.runtime_stats import Moment, RuntimeStats  # noqa: E402
from ddpexec.settings import Settings  # noqa: E402
from ddpexec.stopwatch import Span, span_of  # noqa: E402
from ddpexec.timed import timed_model  # noqa: E402
from ddpexec.under_load import _beside  # noqa: E402
from ddpexec.visits import UsedMap  # noqa: E402
from ddpsim.bucketing import BucketCaps  # noqa: E402
from ddpsim.workload import Workload  # noqa: E402
from tests.conformance.cuda_as_cpu import FACTORIES, on_cpu  # noqa: E402
from tests.exec.pretended_backends import Gloo, Nccl  # noqa: E402
from tests.exec.pretended_gpu import CYCLES_A_SECOND, Gpu  # noqa: E402
from tests.exec.small import small_workload  # noqa: E402

MS = 1e-3
CUDA = torch.device("cuda", 0)


@pytest.fixture
def gpu() -> Iterator[Gpu]:
    with Gpu().installed() as installed:
        yield installed


@pytest.fixture
def cuda_is_cpu() -> Iterator[None]:
    """Make the tensors of a cuda device on the CPU."""
    made = {name: on_cpu(getattr(torch, name)) for name in FACTORIES}
    with mock.patch.multiple(torch, Generator=mock.Mock(return_value=torch.Generator()), **made):
        yield


def busy(seconds: float) -> None:
    torch.cuda._sleep(round(seconds * CYCLES_A_SECOND))


def test_a_moment_is_early_on_the_host_and_late_on_a_busy_device(gpu: Gpu) -> None:
    clock = CudaClock(CUDA)
    before = len(gpu.waits)
    begin = clock.now()
    busy(20 * MS)
    end = clock.now()
    assert len(gpu.waits) == before
    assert clock.host_s(end) - clock.host_s(begin) < 10 * MS
    assert clock.device_s(end) - clock.device_s(begin) == pytest.approx(20 * MS, abs=1 * MS)
    assert clock.device_s(begin) == pytest.approx(clock.host_s(begin), abs=1 * MS)


def test_moments_are_as_sharp_after_an_hour(gpu: Gpu) -> None:
    real, skipped_s = time.perf_counter, 0.0

    def later() -> float:
        return real() + skipped_s

    with mock.patch("time.perf_counter", later):
        clock = CudaClock(CUDA)
        for _ in range(1200):
            clock.now()
            skipped_s += 3
        busy(5 * MS)
        begin = clock.now()
        busy(0.1 * MS)
        end = clock.now()
        assert gpu.waits == ["synchronize"]
        assert clock.device_s(end) == pytest.approx(gpu.current.free_s, abs=0.1 * MS)
        assert clock.device_s(end) - clock.device_s(begin) == pytest.approx(0.1 * MS, abs=3e-6)


def test_the_end_of_a_collective_is_marked_beside_the_computation(gpu: Gpu) -> None:
    clock = CudaClock(CUDA)
    nccl = Nccl(gpu, 5 * MS)
    work = nccl.all_reduce(torch.zeros(1), 0)
    finished = clock.watch(work)
    busy(30 * MS)
    assert gpu.waits == ["synchronize"]  # of the clock's own construction
    moment = finished()
    assert moment is not None
    assert clock.device_s(moment) == pytest.approx(nccl.ends_s[0], abs=1 * MS)


def test_the_end_of_a_collective_that_a_thread_runs_is_marked_without_waiting_for_it(gpu: Gpu) -> None:
    clock = CudaClock(CUDA, "gloo")
    gloo = Gloo(gpu, 5 * MS, copy_s=3 * MS)
    work = gloo.all_reduce(torch.zeros(1), 0)
    finished = clock.watch(work)
    busy(30 * MS)
    assert gpu.waits == ["synchronize"]
    assert finished() is None
    work.future.wait()
    moment = finished()
    assert moment is not None
    assert clock.device_s(moment) == pytest.approx(gloo.ends_s[0], abs=1 * MS)


def test_what_a_hook_queues_after_a_collective_is_part_of_it(gpu: Gpu) -> None:
    clock = CudaClock(CUDA, "gloo")
    gloo = Gloo(gpu, 2 * MS)
    future = gloo.all_reduce(torch.zeros(1), 0).future.then(lambda _: busy(6 * MS))
    finished = clock.watch(future)
    future.wait()
    moment = finished()
    assert moment is not None
    assert clock.device_s(moment) == pytest.approx(gloo.ends_s[0] + 6 * MS, abs=2 * MS)


def test_nothing_is_known_of_a_collective_that_was_not_sent(gpu: Gpu) -> None:
    assert CudaClock(CUDA).watch(FinishedWork())() is None


def test_no_process_group_ends_later_for_another(gpu: Gpu) -> None:
    clock = CudaClock(CUDA, "nccl", groups=2)
    groups = Nccl(gpu, 30 * MS), Nccl(gpu, 5 * MS)
    moments = [clock.watch(groups[i % 2].all_reduce(torch.zeros(1), i), i)() for i in range(4)]
    ends_s = [end_s for pair in zip(*(group.ends_s for group in groups), strict=True) for end_s in pair]
    assert [clock.device_s(moment) for moment in moments] == pytest.approx(ends_s, abs=1 * MS)


def member(rank: int) -> mock.Mock:
    return mock.Mock(rank=rank, backend="nccl", device_for=lambda device: device)


@pytest.mark.usefixtures("cuda_is_cpu")
def test_rank_zero_answers_with_the_time_at_which_the_message_has_arrived(gpu: Gpu) -> None:
    arrivals_s, answers_s = [], []

    def receive(box: torch.Tensor, **_: Any) -> None:
        arrivals_s.append(gpu.current.queue(4 * MS))

    def send(box: torch.Tensor, **_: Any) -> None:
        answers_s.append(box.item())

    with mock.patch.multiple("torch.distributed", recv=receive, send=send):
        _exchange(member(0), 1)
    late_s = [answer - arrival for answer, arrival in zip(answers_s, arrivals_s, strict=True)]
    assert min(late_s) >= 0
    assert statistics.median(late_s) < 2 * MS


@pytest.mark.usefixtures("cuda_is_cpu")
def test_the_offset_counts_the_way_there_and_back_on_the_device(gpu: Gpu) -> None:
    def answer(box: torch.Tensor, **_: Any) -> None:
        arrival_s = gpu.current.queue(4 * MS)
        box.fill_(arrival_s + 100)
        gpu.current.queue(4 * MS)

    with mock.patch.multiple("torch.distributed", recv=answer, send=mock.DEFAULT):
        assert _exchange(member(1), 1) == pytest.approx(100, abs=1 * MS)


def test_a_spin_lasts_as_long_as_it_is_to_with_all_that_a_kernel_takes(gpu: Gpu) -> None:
    gpu.kernel_s = 10e-6
    spin = spinner(CUDA)
    before_s = gpu.spun_s
    assert [spin(seconds) for seconds in (7 * MS, 50e-6, 9e-6)] == [7 * MS, 50e-6, 0]
    assert gpu.spun_s - before_s == pytest.approx(7 * MS + 50e-6, rel=0.01)


@pytest.mark.usefixtures("cuda_is_cpu")
def test_gradients_closer_than_two_kernels_do_not_stretch_a_backward(gpu: Gpu) -> None:
    gpu.kernel_s = 10e-6
    timed = timed_model(small_workload(parameters=200, step_s=7e-6), device=CUDA)
    batch = timed.model.make_batch(1, CUDA)
    loss = timed.model.loss(timed.model.module(*batch.inputs), batch)
    before_s = gpu.spun_s
    loss.backward()
    assert gpu.spun_s - before_s == pytest.approx(200 * 7e-6, rel=0.02)
    assert timed.replay.gradients == 0, "how late they come is the device's to know"
    assert np.isnan(timed.replay.lateness_s).all()


def run_on_gpu(settings: Settings, workload: Workload, backend: str) -> Run:
    with (
        mock.patch("ddpexec.construction.devices_of", return_value=(None, None)),
        mock.patch("torch.distributed.get_backend", return_value=backend),
    ):
        return Run(settings, CUDA, workload=workload)


def sent_by(backend: Nccl | Gloo) -> Any:
    return mock.patch.object(Communicator, "all_reduce", lambda _, tensor, number: backend.all_reduce(tensor, number))


def nearest(moments: list[float], to: float) -> float:
    return min(moments, key=lambda moment: abs(moment - to))


@pytest.mark.usefixtures("one_rank", "cuda_is_cpu")
@pytest.mark.parametrize("view", [False, True])
def test_a_step_with_nccl_never_makes_the_host_wait_and_is_seen_by_both_clocks(gpu: Gpu, view: bool) -> None:
    workload = small_workload(step_s=4 * MS)
    nccl = Nccl(gpu, 3 * MS)
    settings = Settings(iterations=3, caps=BucketCaps(bucket_cap_mb=0.02), gradient_as_bucket_view=view)
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
            assert gradient.ready_s - backward == pytest.approx(ready, rel=0.01, abs=0.2 * MS)
            assert gradient.hook_s < gradient.ready_s
        for bucket in iteration.buckets:
            assert bucket.launched_s < bucket.ready_s <= bucket.started_s
            assert bucket.finished_s == pytest.approx(nearest(nccl.ends_s, bucket.finished_s), abs=1 * MS)
            assert bucket.finished_s <= bucket.written_s
        assert iteration.forward_s == pytest.approx(4 * MS, abs=1 * MS)
        assert iteration.backward_compute_s == pytest.approx(24 * MS, abs=1 * MS)
        assert iteration.exposed_comm_s == pytest.approx(3 * MS, abs=1 * MS)
        assert iteration.end_s - start == pytest.approx(35 * MS, abs=2 * MS)


@pytest.mark.usefixtures("one_rank", "cuda_is_cpu")
def test_a_step_with_gloo_waits_once_for_a_bucket_at_the_end_of_backward(gpu: Gpu) -> None:
    gloo = Gloo(gpu, 3 * MS)
    settings = Settings(iterations=2, caps=BucketCaps(bucket_cap_mb=0.02))
    run = run_on_gpu(settings, small_workload(step_s=4 * MS), "gloo")
    before = len(gpu.waits)
    with sent_by(gloo), gpu.reading_tensors_waits():
        run.train()
    for iteration in run.trace().iterations[1:]:
        backward = iteration.gradients[0].hook_s
        for bucket in iteration.buckets:
            assert bucket.launched_s < backward + 10 * MS, "the host runs ahead of the device's 24 ms"
            assert bucket.finished_s == pytest.approx(nearest(gloo.ends_s, bucket.finished_s), abs=3 * MS)
        assert 2 * MS < iteration.exposed_comm_s < 15 * MS
    buckets = sum(len(note.buckets) for note in run.observer.notes)
    assert gpu.waits[before:].count("GlooWork.wait") <= buckets


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


@pytest.mark.usefixtures("cuda_is_cpu")
def test_the_speed_of_copies_is_the_devices_not_that_of_the_host_which_queues_them(gpu: Gpu) -> None:
    def round_trip(_: Copies) -> None:
        for _ in range(4):
            time.sleep(2 * MS)
            busy(0.5 * MS)

    with mock.patch("ddpexec.copies.BUCKET_BYTES", 4800), mock.patch.object(Copies, "round_trip", round_trip):
        copies = Copies(CUDA)
        speed = copies.speed(mock.Mock())
    assert copies.size_bytes / speed == pytest.approx(2 * MS, rel=0.1)


@pytest.fixture
def gil_is_kept() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.05)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("one_rank", "gil_is_kept")
def test_a_collective_beside_a_computation_ends_when_the_device_has_ended_it(gpu: Gpu) -> None:
    nccl, tensor, spans, devices = Nccl(gpu, 3 * MS), torch.zeros(1), list[Span](), list[torch.device]()

    def collective() -> Span:
        spans.append(span_of(lambda: nccl.all_reduce(tensor, 0).wait(), CUDA))
        return spans[-1]

    def compute() -> None:
        until = time.perf_counter() + 5 * MS
        while time.perf_counter() < until:
            pass

    launched = Launched(Communicator([torch.distributed.group.WORLD]), CUDA, 1)
    with mock.patch("torch.cuda.set_device", devices.append):
        _, median_s = _beside(launched, compute, collective, 9)
    assert median_s == pytest.approx(3 * MS, abs=1 * MS)
    assert statistics.median(end_s for _, end_s in spans) == pytest.approx(nccl.ends_s[4], abs=1 * MS)
    assert devices == [CUDA]


def test_runtime_statistics_are_of_the_device_and_wait_for_it_only_where_they_are_read(gpu: Gpu) -> None:
    busy(20 * MS)  # the host is ahead
    stats = RuntimeStats([CUDA])
    for iteration in (1, 2, 3):
        stats.begin(iteration)
        for moment in (Moment.BACKWARD, Moment.COMMUNICATION, Moment.COMPUTED, Moment.COMMUNICATED):
            busy(iteration * int(moment) * MS)
            stats.note(moment)
    assert gpu.waits == []
    data = stats.data
    assert data["iteration"] == 2
    assert data["forward_compute_time"] == pytest.approx(2e6, abs=1e4)
    assert data["backward_compute_time"] == pytest.approx(10e6, abs=1e4)
    assert data["backward_comm_time"] == pytest.approx(14e6, abs=1e4)
    assert data["avg_backward_compute_comm_overlap_time"] == pytest.approx(4.5e6, abs=1e4)


SECOND = torch.device("cuda", 1)


@pytest.mark.usefixtures("cuda_is_cpu")
def test_the_device_that_is_measured_is_waited_for_whichever_is_current(gpu: Gpu) -> None:
    measure("fp16", device="cuda:1", elements=(64, 256), repeats=1)
    assert set(gpu.synchronised) == {SECOND}
    gpu.synchronised.clear()
    measure("fp16", elements=(64, 256), repeats=1)
    assert gpu.synchronised == []
    with mock.patch("ddpexec.device_pass.profile"), mock.patch("ddpexec.device_pass._events", return_value=[]):
        profiled = DevicePass(SECOND)
        profiled.start()
        for _ in range(DevicePass.iterations):
            profiled.mark("forward")
            profiled.end_iteration()
    assert gpu.synchronised == [SECOND, SECOND]


def test_a_model_is_captured_with_its_device_as_the_current_one(gpu: Gpu) -> None:
    current = mock.MagicMock()
    parts = {"_device": mock.Mock(return_value=SECOND), "build": current.build, "_capture": current.capture}
    with mock.patch.multiple("ddpexec.capture", **parts), mock.patch("torch.cuda.device", current.device):
        capture_model("mlp", CaptureSettings())
    names = [call[0] for call in current.mock_calls]
    assert names == ["device", "device().__enter__", "build", "capture", "device().__exit__"]
    current.device.assert_called_once_with(SECOND)


class Bucket:
    """What a compressing hook needs of a GradBucket: one parameter, its first gradients."""

    def __init__(self, gradient: torch.Tensor) -> None:
        self._gradient = gradient

    def index(self) -> int:
        return 0

    def buffer(self) -> torch.Tensor:
        return self._gradient

    def gradients(self) -> list[torch.Tensor]:
        return [self._gradient]


GRADIENTS = {
    1: torch.ones(64).mul_(torch.tensor([1.0, -1.0]).repeat(32)),
    8: torch.linspace(-1, 1, 64),
    16: torch.cat([torch.ones(1) * 1000, torch.ones(63)]),
    32: torch.full((64,), float("inf")),
}


@pytest.mark.parametrize("bits", GRADIENTS)
def test_precision_on_a_gpu_is_chosen_when_the_bucket_starts_again(gpu: Gpu, bits: int) -> None:
    bucket = Bucket(GRADIENTS[bits])
    on_cpu, on_gpu = (Adaptive(0.006, every=2) for _ in range(2))
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
    assert on_gpu.start(Bucket(torch.ones(3))) == 32


def test_capture_stamps_both_clocks_and_leaves_the_host_alone(gpu: Gpu) -> None:
    module = torch.nn.Linear(3, 2)
    recorder = Recorder(module)
    recorder.device = CUDA
    recorder.install()
    module.register_forward_hook(lambda *_: busy(4 * MS))
    module.weight.register_hook(lambda _: busy(6 * MS))
    for _ in range(3):
        module(torch.ones(1, 3)).sum().backward()
        recorder.end_iteration()
    recorder.remove()
    assert gpu.waits == []
    torch.cuda.synchronize()
    times = recorder.times(0, 3)
    assert times.forward.device_s == pytest.approx(np.full(3, 4 * MS), abs=1 * MS)
    assert times.backward.device_s == pytest.approx(np.full(3, 6 * MS), abs=1 * MS)
    assert times.gradient_ready_s[:, 0] == pytest.approx(np.full(3, 6 * MS), abs=1 * MS)
    assert (times.gradient_hook_s[:, 0] < 3 * MS).all()
