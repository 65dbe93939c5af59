"""What a step sends beside its gradients, and a layout that is not priced: named by estimates and captures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddpexec.capturing.capture import Capture, CaptureSettings
from ddpexec.capturing.estimate import estimate_step
from ddpsim.workload.gpus import gpu_named
from ddpsim.workload.on_gpu import estimate_on_gpu

Step = Callable[[], Any]
QUICK = CaptureSettings(iterations=1, warm_up=1)


def net(norm: type[nn.Module] = nn.BatchNorm2d) -> nn.Module:
    layers = [part for _ in range(3) for part in (nn.Conv2d(8, 8, 3, padding=1), norm(8), nn.ReLU())]
    return nn.Sequential(*layers)


def make(
    module: nn.Module, images: Tensor, divide: Callable[[], Tensor] = lambda: torch.tensor(1.0)
) -> tuple[nn.Module, Step]:
    def step() -> None:
        (module(images).square().sum() / divide()).backward()
        module.zero_grad()

    return module, step


def images() -> Tensor:
    return torch.randn(4, 8, 6, 6)


def told(module: Callable[[], nn.Module], given: Callable[[], Tensor] = images, **more: Any) -> str:
    return " ".join(estimate_step(lambda: make(module(), given(), **more), "A100").left_out)


def count_collectives() -> Tensor:
    count = torch.ones(1)
    if dist.is_initialized():
        dist.all_reduce(count)
    return count


def test_nothing_is_said_of_a_step_that_sends_gradients_alone() -> None:
    assert told(net) == ""
    assert not dist.is_initialized()


def test_synchronised_norms_are_counted_and_keep_their_time() -> None:
    assert "3 SyncBatchNorm layers take 6 collectives a step" in told(lambda: net(nn.SyncBatchNorm))
    found, plain = (
        estimate_step(lambda norm=norm: make(net(norm), images()), "A100")
        for norm in (nn.SyncBatchNorm, nn.BatchNorm2d)
    )
    assert found.forward == plain.forward
    on_another = estimate_on_gpu(found, gpu_named("H100"))
    assert on_another.left_out == found.left_out != ()


def test_collectives_that_the_step_calls_are_named_though_no_group_is_there() -> None:
    said = told(net, divide=count_collectives)
    assert "torch.distributed's allreduce 1 time (4 bytes)" in said

    def unguarded() -> Tensor:
        pair = torch.ones(2)
        dist.broadcast(pair, 0)
        dist.all_reduce(pair, async_op=True).wait()
        return pair.sum()

    said = told(net, divide=unguarded)
    assert "broadcast 1 time" in said
    assert "allreduce 1 time" in said
    assert not dist.is_initialized()


@pytest.mark.parametrize("where", ["images", "weights"])
def test_channels_last_is_not_priced_and_says_so(where: str) -> None:
    def last() -> nn.Module:
        return net().to(memory_format=torch.channels_last)

    said = told(last) if where == "weights" else told(net, lambda: images().to(memory_format=torch.channels_last))
    assert "the layout is not priced" in said


def captured(module: nn.Module, step: Step) -> tuple[str, ...]:
    with Capture(module, settings=QUICK) as capture:
        for _ in range(4):
            step()
            capture.step()
    assert capture.workload is not None
    return capture.workload.left_out


@pytest.mark.usefixtures("one_rank")
def test_a_capture_names_collectives_too() -> None:
    assert "the step itself makes 1 collective:" in " ".join(captured(*make(net(), images(), count_collectives)))


def test_a_capture_names_synchronised_norms_too() -> None:
    said = captured(*make(net(nn.SyncBatchNorm), images()))
    assert [each.partition(" take")[0] for each in said] == ["3 SyncBatchNorm layers"]
