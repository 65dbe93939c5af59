from __future__ import annotations

import contextlib
import threading
import time

import pytest
import torch
from torch import nn

from ddpexec.ddp.gradient_hooks import hook_gradients, serial
from ddpexec.ddp.parameters import ModelParameters


@pytest.mark.parametrize(("devices", "most"), [(("cpu", "meta"), 1), (("cpu", "cpu"), 2)])
def test_gradients_of_several_devices_are_taken_one_at_a_time(devices: tuple[str, str], most: int) -> None:
    parameters = tuple(nn.Parameter(torch.ones(4, device=device)) for device in devices)
    inside: set[int] = set()
    together: list[int] = []
    both = threading.Barrier(2)

    def hook(index: int, parameter: nn.Parameter) -> None:
        assert parameter is parameters[index]
        inside.add(index)
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.2 if most == 1 else 60)
        together.append(len(inside))
        time.sleep(0.01)  # the other may see this one here
        inside.remove(index)

    hook_gradients(ModelParameters(parameters, ()), hook)
    calls = [(each, parameter) for parameter in parameters for each in parameter._post_accumulate_grad_hooks.values()]
    threads = [threading.Thread(target=each, args=(parameter,)) for each, parameter in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(together) == most


def test_a_thread_may_come_back_in() -> None:
    depths: list[int] = []

    def again(depth: int) -> None:
        depths.append(depth)
        if depth:
            into(depth - 1)

    into = serial(again)
    into(2)
    assert depths == [2, 1, 0]
