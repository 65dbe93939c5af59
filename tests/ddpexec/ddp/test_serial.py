from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from ddpexec.ddp.serial import serial  # noqa: E402
from ddpexec.ddp.wrapper import DistributedDataParallel  # noqa: E402
from ddpexec.timing.clock import HostClock  # noqa: E402
from ddpexec.timing.observe import Observer  # noqa: E402

Hook = Callable[[Any], None]


def hooks_of(*devices: str, observer: Observer | None = None) -> tuple[DistributedDataParallel, list[tuple[Hook, Any]]]:
    """Return a wrapped module with a parameter a device, each with its gradient, and what autograd would call."""
    parameters = [nn.Parameter(torch.ones(4, device=device)) for device in devices]
    with mock.patch("ddpexec.ddp.options.check_module"):
        ddp = DistributedDataParallel(nn.ParameterList(parameters), comm="noop", init_sync=False, observer=observer)
    hooks: list[tuple[Hook, Any]] = []
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
        hooks += [(hook, parameter) for hook in parameter._post_accumulate_grad_hooks.values()]
    return ddp, hooks


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("observed", [False, True])
def test_gradients_of_several_devices_are_taken_one_at_a_time(observed: bool) -> None:
    observer = Observer(HostClock()) if observed else None
    ddp, hooks = hooks_of("cpu", "meta", observer=observer)
    reducer, queue = ddp.reducer, ddp.reducer._queue
    inside: list[int] = []
    most: list[int] = []

    def slow(index: int) -> list[int]:
        inside.append(index)
        time.sleep(0.05)
        most.append(len(inside))
        inside.remove(index)
        return queue.ready(index)

    reducer.start_iteration()
    reducer.prepare_backward(())
    reducer._queue = mock.Mock(wraps=queue, ready=slow)
    with mock.patch.object(reducer, "_queue_callback"):
        threads = [threading.Thread(target=hook, args=(parameter,)) for hook, parameter in hooks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert most == [1, 1]
    assert len(reducer.in_flight.works) == 2
    assert observer is None or set(observer.hooks) == {0, 1}


@pytest.mark.usefixtures("one_rank")
def test_gradients_of_one_device_take_no_lock() -> None:
    ddp, hooks = hooks_of("cpu", "cpu")
    assert all(isinstance(hook, functools.partial) and hook.func == ddp.reducer._gradient for hook, _ in hooks)


def test_a_thread_may_come_back_in() -> None:
    depths: list[int] = []

    def again(depth: int) -> None:
        depths.append(depth)
        if depth:
            into(depth - 1)

    into = serial(again)
    into(2)
    assert depths == [2, 1, 0]
