"""What `capture` records of a module on several GPUs, as far as that can be told without any."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from ddpexec.capturing.capture import Capture, CaptureSettings
from ddpexec.capturing.devices import CopiesBetween, DevicesStamp, tell_devices
from ddpsim.common.errors import WorkloadError
from ddpsim.workload.profile import ForwardUse
from tests.ddpexec.small import small_workload

CUDA = [torch.device("cuda", number) for number in (0, 1)]
SETTINGS = CaptureSettings(iterations=3, warm_up=1)


def recorded():
    """A forward of 60 ms and a backward of 60, of which a copy is 10 each; three parameters on each device."""
    source = small_workload(parameters=6, step_s=0.010)
    parameters = tuple(replace(p, device=f"cuda:{number // 3}") for number, p in enumerate(source.parameters))
    host_s, device_s = 0.001 * np.arange(6.0), np.array([0.0, 8, 16, 35, 43, 51]) * 1e-3
    ready = np.array([[0.060, 0.050, 0.040, 0.020, 0.010, 0.005]])
    return replace(
        source,
        device="H100",
        threads=None,
        parameters=parameters,
        forward=replace(source.forward, device_s=np.array([0.060])),
        backward=replace(source.backward, device_s=np.array([0.060])),
        gradient_hook_s=ready / 10,
        gradient_ready_s=ready,
        forward_use_s=ForwardUse(host_s, device_s),
    )


def test_a_recorded_step_is_told_by_device_without_its_copies() -> None:
    pair = CUDA[0], CUDA[1]
    found = tell_devices(recorded(), CUDA, {pair: 4096}, {pair: 0.010})
    first, second = found.devices
    assert (first.device, first.sent_bytes, second.device, second.sent_bytes) == ("cuda:0", 4096, "cuda:1", 0)
    assert first.device_s == pytest.approx(0.025)  # of the 35 ms until the second device's first layer, 10 are the copy
    assert second.device_s == pytest.approx(0.050)
    assert found.backward.device_s[0] == pytest.approx(0.050)
    assert found.gradient_ready_s[0].tolist() == pytest.approx([0.050, 0.040, 0.030, 0.020, 0.010, 0.005])


def test_devices_between_which_nothing_is_copied_and_an_unseen_forward_are_refused() -> None:
    with pytest.raises(WorkloadError, match="no activation is copied from cuda:0 to cuda:1"):
        tell_devices(recorded(), CUDA, {}, {})
    with pytest.raises(WorkloadError, match="it was not seen when forward needs each parameter"):
        tell_devices(replace(recorded(), forward_use_s=None), CUDA, {}, {})


def test_bytes_that_are_copied_from_one_device_to_another_are_counted() -> None:
    """`cpu` stands for one device and `meta` for the other; where they are a GPU's, the host's batches are left out."""
    values, numbers = torch.zeros(8, 4), torch.zeros(8, dtype=torch.int64)
    copies = CopiesBetween()
    copies.wanted = True
    copies.begin()
    values.to("meta")
    copies.end()
    assert copies.copied == {}
    copies = CopiesBetween(host=None)
    copies.wanted = True
    copies.begin()
    values.to("meta"), numbers.to("meta"), values.to(torch.float64), values + 1
    copies.end()
    values.to("meta")
    assert copies.copied == {(torch.device("cpu"), torch.device("meta")): 8 * 4 * 4}


def test_a_stamp_of_several_devices_is_of_the_last_that_comes_there() -> None:
    class Clock:
        def device_s(self, moment: float) -> float:
            return moment

    clocks = [Clock(), Clock()]
    begin, end = (DevicesStamp(0.0, None, moments, clocks) for moments in ((1.0, 3.0), (7.0, 5.0)))
    assert end.device_since(begin) == 4.0


def test_a_module_on_several_devices_that_are_no_gpus_is_refused() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, device="meta"))
    with pytest.raises(WorkloadError, match="the module is on cpu, meta") as error:
        Capture(module, settings=SETTINGS)
    assert error.value.place == "Capture"


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="a module on two GPUs needs two")
def test_a_module_on_two_gpus_is_recorded_with_its_parts() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(512, 512, device=CUDA[0]), nn.Linear(512, 512, device=CUDA[1])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.two(self.one(x).relu().to(CUDA[1]))

    module = Two()
    inputs, optimizer = torch.randn(64, 512, device=CUDA[0]), torch.optim.SGD(module.parameters(), lr=1e-3)
    with Capture(module, settings=SETTINGS) as capture:
        while not capture.done:
            module(inputs).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            capture.step()
    assert capture.workload is not None
    assert [part.sent_bytes for part in capture.workload.devices] == [64 * 512 * 4, 0]
    assert [p.device for p in capture.workload.parameters] == ["cuda:0", "cuda:0", "cuda:1", "cuda:1"]
