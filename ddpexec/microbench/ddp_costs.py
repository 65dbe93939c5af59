"""What DDP costs a rank beside wire time, each part measured apart on this machine, all ranks at once.

The parts are those of the simulation: hook and small copies, launch, copies by byte, the end of a bucket, DDP's share
of forward, buffers, the search for unused parameters. On a CPU caches are cold, as layers' computing leaves them.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from ddpexec.ddp.wrapper import DistributedDataParallel
from ddpexec.groups.launched import Launched
from ddpexec.groups.process_groups import Communicator, wait
from ddpexec.microbench.codecs import measure_codecs
from ddpexec.microbench.copies import Copies, make_small_bucket
from ddpexec.microbench.crowded import measure_crowded
from ddpexec.microbench.units import measure_units
from ddpexec.timing.stopwatch import Prepare, agree_on_median, chill, measure_last_to_last, median_difference, span_of

GRADIENTS = 200
"""Small parameters of the model whose hooks are timed."""

_BUFFERS = 100
"""Buffers of the larger of two broadcasts that are compared; chosen by hand, about what ResNet-50 has (159)."""
_OPTIMIZER_S = 0.02
"""Seconds slept in place of an optimizer before a broadcast of buffers; chosen by hand."""


def measure_costs(launched: Launched) -> dict[str, float]:
    """Return DDP's costs by name, seconds or bytes per second, the median of the ranks' medians.

    `hook_s` a gradient, `launch_s` a collective, `copy_Bps` gradient bytes copied, `finish_s` a bucket without its
    copies, `forward_s` a forward, `buffer_s` a buffer, `search_s` a parameter; on a CPU also `broadcast_s`
    of buffers, and the factors by which copies and collectives slow each other; over gloo `pair_s` and `behind_s` of
    small allreduces beside others, and on a CPU `unit_s` of a collective under `fully_shard`. `fp16_kernel_s` and
    `fp16_Bps`, and those of other codecs, are of encoding.
    """
    communicator, device = launched.communicator, launched.device
    measures: dict[str, Callable[[Communicator, torch.device], float]] = {
        "launch_s": _launch,
        "finish_s": _finish,
        "forward_s": _forward,
        "buffer_s": _buffer,
        "search_s": _search,
    }
    costs = {name: agree_on_median(measure(communicator, device), communicator) for name, measure in measures.items()}
    copies = Copies(device)
    costs["copy_Bps"] = agree_on_median(copies.speed(communicator), communicator)
    if device.type == "cpu" and communicator.world_size > 1:
        costs |= {"broadcast_s": _broadcast(communicator, device, copies), **copies.slowdowns(communicator)}
    if communicator.backend == "gloo" and communicator.world_size > 1:
        costs |= measure_crowded(communicator, device)
    if communicator.backend == "gloo" and device.type == "cpu":
        costs["unit_s"] = agree_on_median(measure_units(communicator), communicator)
    costs |= measure_codecs(communicator, device)
    hook = functools.partial(_hook, finish_s=costs["finish_s"])
    return {"hook_s": agree_on_median(hook(communicator, device), communicator), **costs}


class _Chain(nn.Module):
    """Has many small parameters, buffers of two types as batch normalisation has, and next to nothing to compute."""

    def __init__(self, gradients: int, buffers: int = 0) -> None:
        super().__init__()
        self.scales = nn.ParameterList(nn.Parameter(torch.ones(16)) for _ in range(gradients))
        for index in range(buffers):
            self.register_buffer(f"buffer{index}", torch.ones(16, dtype=torch.int64 if index % 2 else torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        for scale in self.scales:
            x = x * scale
        return x


def _pair(device: torch.device, find_unused: bool = False) -> tuple[nn.Module, DistributedDataParallel]:
    """Return a chain, and another in DDP that sends nothing, after its rebuild."""
    plain, wrapped = _Chain(GRADIENTS).to(device), _Chain(GRADIENTS).to(device)
    ddp = DistributedDataParallel(wrapped, comm="noop", find_unused_parameters=find_unused)
    for _ in range(3):
        _backward(ddp, device)()
    return plain, ddp


def _backward(module: nn.Module, device: torch.device) -> Callable[[], None]:
    """Run forward and return the backward that belongs to it."""
    module.zero_grad(set_to_none=True)
    loss = module(torch.ones(16, device=device)).sum()
    return loss.backward  # type: ignore[no-any-return]


def _hook(communicator: Communicator, device: torch.device, finish_s: float) -> float:
    plain, ddp = _pair(device)
    added = median_difference(_with_cold_caches(ddp, device), _with_cold_caches(plain, device), device, 20)
    return max(0.0, added - finish_s) / GRADIENTS


def _with_cold_caches(module: nn.Module, device: torch.device) -> Prepare:
    """Return what runs forward, chills the caches, and returns the backward."""

    def prepare() -> Callable[[], None]:
        backward = _backward(module, device)
        chill(device)
        return backward

    return prepare


def _forward(communicator: Communicator, device: torch.device) -> float:
    def prepare(module: nn.Module) -> Callable[[], object]:
        chill(device)
        return lambda: _backward(module, device)

    plain, ddp = _pair(device)
    return median_difference(lambda: prepare(ddp), lambda: prepare(plain), device, 30)


def _search(communicator: Communicator, device: torch.device) -> float:
    """Compare whole steps with and without the search; what it adds to backward belongs to it."""

    def step(find_unused: bool) -> Prepare:
        _, ddp = _pair(device, find_unused)
        return lambda: lambda: _backward(ddp, device)()

    return median_difference(step(True), step(False), device, 20) / GRADIENTS


def _launch(communicator: Communicator, device: torch.device) -> float:
    tensor = torch.ones(1 << 14, device=device)
    times = []
    for _ in range(30):
        chill(device)
        communicator.barrier()
        start = time.perf_counter()
        work = communicator.all_reduce(tensor, 0)
        times.append(time.perf_counter() - start)
        wait(work, communicator, "an allreduce")
    return statistics.median(times)


def _finish(communicator: Communicator, device: torch.device) -> float:
    """Wait for a finished collective and write a bucket of small gradients back."""
    bucket, parameters = make_small_bucket(16, device)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    times = []
    for _ in range(30):
        bucket.complete()
        work = communicator.all_reduce(bucket.buffer, 0)
        chill(device)
        time.sleep(0.002)
        communicator.barrier()
        start = time.perf_counter()
        wait(work, communicator, "an allreduce")
        bucket.write_back(())
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _buffer(communicator: Communicator, device: torch.device) -> float:
    """Compare a broadcast of many buffers with one of few; the bytes are too few to matter."""
    many, few = (DistributedDataParallel(_Chain(1, count).to(device)).buffer_sync for count in (_BUFFERS, 1))
    return median_difference(lambda: many.synchronise, lambda: few.synchronise, device, 30) / (_BUFFERS - 1)


def _broadcast(communicator: Communicator, device: torch.device, copies: Copies) -> float:
    """Broadcast buffers when every rank has written its buckets back and an optimizer's time has passed."""
    buffers = DistributedDataParallel(_Chain(1, _BUFFERS).to(device)).buffer_sync
    spans = []
    for _ in range(15):
        copies.round_trip()
        communicator.barrier()
        time.sleep(_OPTIMIZER_S)
        spans.append(span_of(buffers.synchronise, device))
    return statistics.median(measure_last_to_last(spans, communicator))
