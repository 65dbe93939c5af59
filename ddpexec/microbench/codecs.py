"""What encoding and decoding a bucket costs a rank, by compression scheme: hooks run in a process group of one rank.

`fit` turns the times into the two constants of `ddpsim.schedules.compression.Roofline`: launch time and bandwidth.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

from ddpexec.ddp.comm_hooks import GradBucket, Hook
from ddpexec.ddp.compression.codecs import LinearCodec
from ddpexec.ddp.compression.feedback import ErrorFeedback, feedback_hook
from ddpexec.ddp.compression.schemes import hook_for
from ddpexec.groups.process_groups import Communicator
from ddpexec.timing.stopwatch import agree_on_median, chill, seconds_of
from ddpsim.bucketing import Parameter
from ddpsim.schedules import compression

LEAST_BYTE_S = 1e-13
"""Seconds a byte of a memory faster than any: what a fit that finds none for bytes says; 10 TB/s."""


def fit(works: Sequence[compression.CodecWork], times: Sequence[float]) -> compression.Roofline:
    """Return the launch time and memory bandwidth that explain `times` best, by least squares of relative error.

    Neither is negative: where the best of both is, it counts as nothing and the other explains the times alone.
    """
    rows = torch.tensor(
        [[w.kernels / t, w.moved_bytes / t] for w, t in zip(works, times, strict=True)], dtype=torch.float64
    )
    launch_s, byte_s = map(float, torch.linalg.lstsq(rows, torch.ones(len(rows), 1, dtype=torch.float64)).solution)
    if launch_s < 0:
        launch_s, byte_s = 0.0, _scale_of(rows[:, 1])
    elif byte_s < LEAST_BYTE_S:
        launch_s, byte_s = _scale_of(rows[:, 0]), LEAST_BYTE_S
    return compression.Roofline(launch_s, 1 / byte_s)


def _scale_of(column: Tensor) -> float:
    """Return what a unit of `column` must take for their products to be as near 1 as they get."""
    return float(column.sum() / column.square().sum())


SCHEMES = ("fp16", "bf16", "powersgd:4", "onebit", "topk:0.01", "adaptive:8")
"""Of each family one."""
SIDES = (48, 360)
"""Rows and columns of the square gradients of a small and of a large bucket; chosen by hand: 0.1 and 6 MB."""
GRADIENTS = 12
"""Of a bucket, about what 25 MiB of a transformer hold."""
REPEATS = 3
"""Of each scheme and size, the median of which counts; chosen by hand."""
LEAST = 0.1
"""Share of a hook's time that is its encoding at the least, where noise leaves less; chosen by hand."""


def measure_codecs(communicator: Communicator, device: torch.device) -> dict[str, float]:
    """Return `fp16_kernel_s` and `fp16_Bps`, and those of every other scheme: the median of the ranks' fits.

    What the collectives themselves take, over a group of this rank alone, is measured by torch's plain hook and left
    out, once for each of a scheme's messages.
    """
    with _make_own_group(communicator) as group:
        plain = [_seconds(default_hooks.allreduce_hook, group, _bucket(side, device), device) for side in SIDES]
        costs: dict[str, float] = {}
        for name in SCHEMES:
            scheme = compression.scheme(name)
            works, times = [], []
            for side, plain_s in zip(SIDES, plain, strict=True):
                parameters = [Parameter("", (side, side))] * GRADIENTS
                messages = sum(message.size_bytes > 0 for message in scheme.messages(parameters))
                state, hook = _hook(name, group)
                taken = _seconds(hook, state, _bucket(side, device), device)
                works.append(compression.work(scheme, parameters, 1))
                times.append(max(taken - messages * plain_s, LEAST * taken))
            roofline = fit(works, times)
            family = name.partition(":")[0]
            costs[f"{family}_kernel_s"] = agree_on_median(roofline.launch_s, communicator)
            costs[f"{family}_Bps"] = agree_on_median(roofline.memory_bandwidth, communicator)
    return costs


def _hook(name: str, group: dist.ProcessGroup) -> tuple[object, Hook]:
    """Return a scheme's state and hook, at work from the start; adaptive precision with the bits that `name` gives."""
    if name.startswith("adaptive"):
        return ErrorFeedback(LinearCodec(), group), feedback_hook
    state, hook = hook_for(name, group)
    if isinstance(state, powerSGD_hook.PowerSGDState):
        state.iter = state.start_powerSGD_iter
    return state, hook


def _bucket(side: int, device: torch.device) -> GradBucket:
    flat = torch.randn(GRADIENTS * side * side, device=device)
    parameters = [nn.Parameter(torch.empty(side, side, device=device)) for _ in range(GRADIENTS)]
    views = [piece.view(side, side) for piece in flat.split(side * side)]  # type: ignore[no-untyped-call]
    return GradBucket(0, flat, views, parameters, last=True)


def _seconds(hook: Hook, state: object, bucket: GradBucket, device: torch.device) -> float:
    run: Callable[[], object] = partial(_reduce, hook, state, bucket)
    times = []
    for _ in range(REPEATS + 1):
        chill(device)
        times.append(seconds_of(run, device))
    return statistics.median(times[1:])


def _reduce(hook: Hook, state: object, bucket: GradBucket) -> object:
    return hook(state, bucket).wait()


@contextmanager
def _make_own_group(communicator: Communicator) -> Iterator[dist.ProcessGroup]:
    """Yield a group of this rank alone; all ranks make all groups, as torch asks."""
    groups = [dist.new_group([rank]) for rank in range(communicator.world_size)]
    try:
        yield groups[communicator.rank]
    finally:
        dist.destroy_process_group(groups[communicator.rank])
