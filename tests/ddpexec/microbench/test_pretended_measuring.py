"""What is timed on a GPU that is not there: timed layers, copies, collectives under load, captures."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch

from ddpexec.capturing.capture import CaptureSettings, capture_model
from ddpexec.capturing.recorder import DevicePass, Recorder
from ddpexec.groups.launched import Launched
from ddpexec.groups.process_groups import Communicator
from ddpexec.microbench.ddp_costs import Copies
from ddpexec.microbench.under_load import measure_beside
from ddpexec.running.timed import make_timed_model
from ddpexec.timing.stopwatch import Span, span_of
from ddpexec.timing.waiting import spinner
from tests.ddpexec.ddp.pretended_gpu import CUDA, MS, Gpu, busy
from tests.ddpexec.pretended_backends import Nccl
from tests.ddpexec.small import small_workload


@pytest.mark.usefixtures("host_time")
def test_a_spin_lasts_as_long_as_it_is_to_with_all_that_a_kernel_takes(gpu: Gpu) -> None:
    gpu.kernel_s = 10e-6
    spin = spinner(CUDA)
    before_s = gpu.spun_s
    assert [spin(seconds) for seconds in (7 * MS, 50e-6, 9e-6)] == [7 * MS, 50e-6, 0]
    assert gpu.spun_s - before_s == pytest.approx(7 * MS + 50e-6, rel=0.01)


@pytest.mark.usefixtures("cuda_is_cpu", "host_time")
def test_gradients_closer_than_two_kernels_do_not_stretch_a_backward(gpu: Gpu) -> None:
    gpu.kernel_s = 10e-6
    timed = make_timed_model(small_workload(parameters=200, step_s=7e-6), device=CUDA)
    batch = timed.model.make_batch(1, CUDA)
    loss = timed.model.loss(timed.model.module(*batch.inputs), batch)
    before_s = gpu.spun_s
    loss.backward()
    assert gpu.spun_s - before_s == pytest.approx(200 * 7e-6, rel=0.02)
    assert timed.replay.gradients == 0, "how late they come is the device's to know"
    assert np.isnan(timed.replay.lateness_s).all()


@pytest.mark.usefixtures("cuda_is_cpu", "host_time")
def test_the_speed_of_copies_is_the_devices_not_that_of_the_host_which_queues_them(gpu: Gpu) -> None:
    def round_trip(_: Copies) -> None:
        for _ in range(4):
            time.sleep(2 * MS)
            busy(0.5 * MS)

    with (
        mock.patch("ddpexec.microbench.ddp_costs.BUCKET_BYTES", 4800),
        mock.patch.object(Copies, "round_trip", round_trip),
    ):
        copies = Copies(CUDA)
        speed = copies.speed(mock.Mock())
    assert copies.size_bytes / speed == pytest.approx(2 * MS, rel=0.01)


@pytest.fixture
def gil_is_kept() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.05)
    yield
    sys.setswitchinterval(before)


@pytest.mark.needs("wait")
@pytest.mark.shares_clock  # of the interpreter, whose threads take turns
@pytest.mark.usefixtures("one_rank", "gil_is_kept")
def test_a_collective_beside_a_computation_ends_when_the_device_has_ended_it(gpu: Gpu) -> None:
    nccl, tensor, spans, devices = Nccl(gpu, 20 * MS), torch.zeros(1), list[Span](), list[torch.device]()

    def collective() -> Span:
        spans.append(span_of(lambda: nccl.all_reduce(tensor, 0).wait(), CUDA))
        return spans[-1]

    def compute() -> None:
        until = time.perf_counter() + 5 * MS
        while time.perf_counter() < until:
            pass

    launched = Launched(Communicator([torch.distributed.group.WORLD]), CUDA, 1)
    with mock.patch("torch.cuda.set_device", devices.append):
        _, median_s = measure_beside(launched, compute, collective, 9)
    assert median_s == pytest.approx(20 * MS, abs=10 * MS), "a host that has waited gets the GIL 50 ms later"
    late_s = [abs(end_s - ended_s) for (_, end_s), ended_s in zip(spans, nccl.ends_s, strict=True)]
    assert statistics.median(late_s) < 10 * MS
    assert devices == [CUDA]


SECOND = torch.device("cuda", 1)


@pytest.mark.usefixtures("cuda_is_cpu")
def test_the_device_that_is_measured_is_waited_for_whichever_is_current(gpu: Gpu) -> None:
    with mock.patch("ddpexec.capturing.recorder.profile") as profile:
        profile().export_chrome_trace.side_effect = lambda path: Path(path).write_text('{"traceEvents": []}')
        profiled = DevicePass(SECOND)
        profiled.start()
        for _ in range(DevicePass.iterations):
            profiled.mark("forward")
            profiled.end_iteration()
    assert gpu.synchronised == [SECOND, SECOND]


def test_a_model_is_captured_with_its_device_as_the_current_one(gpu: Gpu) -> None:
    current = mock.MagicMock()
    parts = {"_device": mock.Mock(return_value=SECOND), "build": current.build, "_capture": current.capture}
    with mock.patch.multiple("ddpexec.capturing.capture", **parts), mock.patch("torch.cuda.device", current.device):
        capture_model("mlp", CaptureSettings())
    names = [call[0] for call in current.mock_calls]
    assert names == ["device", "device().__enter__", "build", "capture", "device().__exit__"]
    current.device.assert_called_once_with(SECOND)


@pytest.mark.usefixtures("host_time")
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
    times, *_ = recorder.times(0, 3)
    assert times["forward"].device_s == pytest.approx(np.full(3, 4 * MS), abs=0.05 * MS)
    assert times["backward"].device_s == pytest.approx(np.full(3, 6 * MS), abs=0.05 * MS)
    assert times["gradient_ready_s"][:, 0] == pytest.approx(np.full(3, 6 * MS), abs=0.05 * MS)
    assert (times["gradient_hook_s"][:, 0] < 1 * MS).all()
