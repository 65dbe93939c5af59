"""Moments on a GPU that is not there: both clocks, collectives' ends, offsets."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch

from ddpexec.groups.process_groups import FinishedWork
from ddpexec.timing.clock import CudaClock, offset_to_rank_zero
from tests.ddpexec.ddp.pretended_gpu import CUDA, MS, Gpu, HostTime, busy
from tests.ddpexec.pretended_backends import Gloo, Nccl


def test_moments_are_as_sharp_after_an_hour(gpu: Gpu, host_time: HostTime) -> None:
    clock = CudaClock(CUDA)
    for _ in range(1200):
        clock.now()
        host_time.sleep(3)
    busy(5 * MS)
    begin = clock.now()
    busy(0.1 * MS)
    end = clock.now()
    assert gpu.waits == ["synchronize"]
    assert clock.device_s(end) == pytest.approx(gpu.current.free_s, abs=0.1 * MS)
    assert clock.device_s(end) - clock.device_s(begin) == pytest.approx(0.1 * MS, abs=3e-6)


@pytest.mark.usefixtures("host_time")
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


def soon(finished: Callable[[], Any]) -> Any:
    until = time.perf_counter() + 60
    while (moment := finished()) is None:
        assert time.perf_counter() < until
        time.sleep(1 * MS)
    return moment


def test_the_end_of_a_collective_that_a_thread_runs_is_marked_without_waiting_for_it(gpu: Gpu) -> None:
    clock = CudaClock(CUDA, "gloo")
    gloo, on_the_wire = Gloo(gpu, 0.0, copy_s=60 * MS), threading.Event()
    with mock.patch.object(time, "sleep", side_effect=lambda _: on_the_wire.wait(60)):  # of the collective's thread
        work = gloo.all_reduce(torch.zeros(1), 0)
        finished = clock.watch(work)
        busy(30 * MS)
        assert gpu.waits == ["synchronize"]
        assert finished() is None
        on_the_wire.set()
        work.future.wait()
    assert gloo.ends_s[0] <= clock.device_s(soon(finished)) <= time.perf_counter()


def test_what_a_hook_queues_after_a_collective_is_part_of_it(gpu: Gpu) -> None:
    clock = CudaClock(CUDA, "gloo")
    gloo = Gloo(gpu, 20 * MS)
    future = gloo.all_reduce(torch.zeros(1), 0).future.then(lambda _: busy(60 * MS))
    finished = clock.watch(future)
    there_s = clock.device_s(soon(finished))
    assert gloo.ends_s[0] + 60 * MS <= there_s <= time.perf_counter()


def test_nothing_is_known_of_a_collective_that_was_not_sent(gpu: Gpu) -> None:
    assert CudaClock(CUDA).watch(FinishedWork())() is None


@pytest.mark.usefixtures("host_time")
def test_no_process_group_ends_later_for_another(gpu: Gpu) -> None:
    clock = CudaClock(CUDA, "nccl", groups=2)
    groups = Nccl(gpu, 30 * MS), Nccl(gpu, 5 * MS)
    moments = [clock.watch(groups[i % 2].all_reduce(torch.zeros(1), i), i)() for i in range(4)]
    ends_s = [end_s for pair in zip(*(group.ends_s for group in groups), strict=True) for end_s in pair]
    assert [clock.device_s(moment) for moment in moments] == pytest.approx(ends_s, abs=1 * MS)


def member(rank: int) -> mock.Mock:
    return mock.Mock(rank=rank, world_size=2, backend="nccl", device_for=lambda device: device)


def two_machines(found: list[str], *_: Any, **__: Any) -> None:
    found[:] = "one", "other"


@pytest.mark.usefixtures("cuda_is_cpu", "host_time")
def test_rank_zero_answers_with_the_time_at_which_the_message_has_arrived(gpu: Gpu) -> None:
    arrivals_s, answers_s = [], []

    def receive(box: torch.Tensor, **_: Any) -> None:
        arrivals_s.append(gpu.current.queue(4 * MS))

    def send(box: torch.Tensor, **_: Any) -> None:
        answers_s.append(box.item())

    with mock.patch.multiple("torch.distributed", recv=receive, send=send, all_gather_object=two_machines):
        assert offset_to_rank_zero(member(0)) == 0
    late_s = [answer - arrival for answer, arrival in zip(answers_s, arrivals_s, strict=True)]
    assert min(late_s) >= 0
    assert statistics.median(late_s) < 2 * MS


@pytest.mark.usefixtures("cuda_is_cpu", "host_time")
def test_the_offset_counts_the_way_there_and_back_on_the_device(gpu: Gpu) -> None:
    def answer(box: torch.Tensor, **_: Any) -> None:
        arrival_s = gpu.current.queue(4 * MS)
        box.fill_(arrival_s + 100)
        gpu.current.queue(4 * MS)

    with mock.patch.multiple("torch.distributed", recv=answer, send=mock.DEFAULT, all_gather_object=two_machines):
        assert offset_to_rank_zero(member(1)) == pytest.approx(100, abs=1 * MS)
