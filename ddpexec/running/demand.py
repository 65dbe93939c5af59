"""Whether this machine can replay a workload: what hooks and copies ask of its processors while backward lasts."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from ddpexec.groups.environment import RANKS_HERE
from ddpexec.groups.process_groups import Communicator
from ddpexec.running.timed import make_timed_model
from ddpsim.bucketing import Parameter
from ddpsim.common.errors import InputError
from ddpsim.workload import Phase, Workload
from ddpsim.workload.replayed import single_clock

SHARE = 0.5
"""Of the machine that hooks and copies may ask for; beyond it gradients come late."""
PROBE_BYTES = 32 << 20
"""Bytes of the copy that is timed; chosen by hand, more than caches hold."""
PROBE_LAYERS = 200
"""Layers of the backward that is timed; chosen by hand, about the parameters of ResNet-50 (161)."""


@dataclass(frozen=True, slots=True)
class HookCosts:
    """What DDP's reducer asks of a processor.

    Attributes:
        hook_s: per gradient: its layer, its hook and its stamps.
        copy_Bps: bytes of gradients a second into a bucket.
    """

    hook_s: float
    copy_Bps: float  # noqa: N815


def measure_hook_costs() -> HookCosts:
    """Return the costs on this machine, the best of five each: a large copy, and a backward of empty layers.

    Each of those layers has a small gradient, due at once, that a hook copies as DDP's does.
    """
    source = torch.ones(PROBE_BYTES // 4)
    target = torch.ones_like(source)
    copy_s = min(_time_call(lambda: torch.mul(source, 0.5, out=target)) for _ in range(5))
    timed = make_timed_model(_empty_layers())
    views: dict[torch.Tensor, torch.Tensor] = {
        parameter: torch.ones(1) for parameter in timed.model.module.parameters()
    }

    def copy_in(parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            torch.mul(parameter.grad, 0.5, out=views[parameter])

    for parameter in views:
        parameter.register_post_accumulate_grad_hook(copy_in)  # type: ignore[no-untyped-call]
    batch = timed.model.make_batch()
    backwards = []
    for _ in range(5):
        loss = timed.model.loss(timed.model.module(*batch.inputs), batch)
        backwards.append(_time_call(loss.backward))
        timed.optimizer.step()
    return HookCosts(hook_s=min(backwards) / PROBE_LAYERS, copy_Bps=PROBE_BYTES / copy_s)


def ranks_here() -> int:
    """Return how many ranks run on this machine: a lab's all, else those that torchrun started here."""
    return int(os.environ.get(RANKS_HERE) or os.environ.get("LOCAL_WORLD_SIZE") or 1)


def demand(workload: Workload, costs: HookCosts, ranks: int, processors: int) -> float:
    """Return the share of `processors` that hooks and copies of `ranks` ranks take during backward.

    Args:
        workload: on one clock, scaled as it will run.
    """
    backward_s = float(workload.backward.device_s.mean())
    busy_s = len(workload.parameters) * costs.hook_s + workload.gradient_bytes / costs.copy_Bps
    return math.inf if backward_s == 0 else busy_s * ranks / (backward_s * processors)


def check_capacity(workload: Workload, scale_compute: float, communicator: Communicator) -> None:
    """Raise `InputError` on every rank where this machine cannot replay `workload` at its pace.

    Rank 0 measures while the others wait, and tells them.
    """

    def check() -> None:
        require_capacity(single_clock(workload, scale_compute), measure_hook_costs(), ranks_here())

    communicator.ask_rank_zero(check, "the check of what this machine can replay")


def require_capacity(workload: Workload, costs: HookCosts, ranks: int, processors: int | None = None) -> None:
    """Raise `InputError` with the smallest sufficient `scale_compute` where the demand is `SHARE` or more.

    Args:
        workload: on one clock, scaled as it will run.
        ranks: how many run on this machine.
        processors: those this process may use where None.
    """
    processors = processors or len(os.sched_getaffinity(0))
    demanded = demand(workload, costs, ranks, processors)
    if demanded < SHARE:
        return
    remedy = f"give a workload whose backward takes time, {workload.name}'s takes none"
    if math.isfinite(demanded):
        remedy = f"multiply `scale_compute` by {_format_rounded_up(demanded / SHARE)} or more"
    raise InputError(
        f"hooks and copies of {ranks} ranks take {demanded:.0%} of {processors} processors during the backward of "
        f"{workload.name}; beyond {SHARE:.0%} its gradients would come late",
        place="scale_compute",
        remedy=remedy,
    )


def _format_rounded_up(factor: float) -> str:
    digits = 1 - math.floor(math.log10(factor))
    return f"{math.ceil(factor * 10**digits * (1 + 1e-9)) / 10**digits:g}"


def _empty_layers() -> Workload:
    nothing, at_once = Phase(np.zeros(1), np.zeros(1)), np.zeros((1, PROBE_LAYERS))
    return Workload(
        name="empty layers",
        device="cpu",
        timed=True,
        precision="fp32",
        batch_size=1,
        threads=None,
        estimated=True,
        parameters=tuple(Parameter(f"p{i}", (1,)) for i in range(PROBE_LAYERS)),
        buffers=(),
        forward=nothing,
        backward=nothing,
        optimizer=nothing,
        gradient_hook_s=at_once,
        gradient_ready_s=at_once,
    )


def _time_call(work: Callable[[], object]) -> float:
    start_s = time.perf_counter()
    work()
    return time.perf_counter() - start_s
