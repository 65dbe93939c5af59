"""The two clocks of a rank on a GPU, and kernels that take a given time."""

from __future__ import annotations

import time
from dataclasses import dataclass
from unittest import mock

import pytest
import torch

from ddpexec.timing.clock import CudaClock
from ddpexec.timing.waiting import spinner
from tests.ddpexec.ddp.pretended_gpu import Gpu, HostTime
from tests.gpu.places import Place, goes_ahead

MS = 1e-3
SPIN_S = 0.1
LENGTHS_S = (0.005, 0.02, 0.1)
SLACK_S = 0.5 * MS


@dataclass(frozen=True)
class Seen:
    """A spin as both clocks saw it, all in seconds.

    Attributes:
        idle_s: the device's moment before it, less the host's.
        host_s, device_s: between the moments around it.
        whole_s: from before it until the host had waited for its end.
        late_s: the device's moment after it, less the host's when it had waited.
    """

    idle_s: float
    host_s: float
    device_s: float
    whole_s: float
    late_s: float


def around_a_spin(rank: int, device: torch.device) -> Seen:
    """Return what `CudaClock` says of a spin, beside the host's own watch."""
    spin = spinner(device)
    clock = CudaClock(device)
    start_s = time.perf_counter()
    begin = clock.now()
    spin(SPIN_S)
    end = clock.now()
    torch.cuda.synchronize(device)
    end_s = time.perf_counter()
    return Seen(
        idle_s=clock.device_s(begin) - clock.host_s(begin),
        host_s=clock.host_s(end) - clock.host_s(begin),
        device_s=clock.device_s(end) - clock.device_s(begin),
        whole_s=end_s - start_s,
        late_s=clock.device_s(end) - end_s,
    )


def ahead_of_moments(rank: int, device: torch.device) -> bool:
    """Return whether a hundred moments leave the host free."""
    clock = CudaClock(device)
    return goes_ahead(lambda: [clock.now() for _ in range(100)], device, time.perf_counter)


def spins(rank: int, device: torch.device) -> list[float]:
    """Return how long spins of `LENGTHS_S` were, by CUDA events."""
    spin = spinner(device)
    found = []
    for seconds in LENGTHS_S:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        spin(seconds)
        end.record()
        torch.cuda.synchronize(device)
        found.append(begin.elapsed_time(end) * MS)
    return found


def check_clock(seen: Seen) -> None:
    assert seen.host_s < seen.device_s / 5, "the host was held"
    assert seen.device_s == pytest.approx(SPIN_S, rel=0.01, abs=SLACK_S)
    assert seen.device_s == pytest.approx(seen.whole_s, rel=0.01, abs=SLACK_S)
    assert abs(seen.idle_s) < SLACK_S
    assert abs(seen.late_s) < SLACK_S


def test_a_moment_is_early_on_the_host_and_late_on_a_busy_device(gpu: Place) -> None:
    check_clock(gpu.run(around_a_spin)[0])


def test_moments_do_not_hold_the_host(gpu: Place) -> None:
    assert gpu.run(ahead_of_moments) == [True]


def test_a_spin_is_as_long_as_asked(gpu: Place) -> None:
    assert gpu.run(spins)[0] == pytest.approx(list(LENGTHS_S), rel=0.01)


def test_the_same_on_a_pretended_gpu() -> None:
    device, clock = torch.device("cuda", 0), HostTime()
    with Gpu().installed(), mock.patch.multiple("time", perf_counter=clock.perf_counter, sleep=clock.sleep):
        check_clock(around_a_spin(0, device))
        assert ahead_of_moments(0, device)
        assert spins(0, device) == pytest.approx(list(LENGTHS_S), rel=0.01)
