"""Uneven inputs: a rank that has run out shadows the collectives of those that have not.

What torch's `Joinable` asks of a wrapper, of torch's constructor or of a scheme, as functions of it. The wrapper says
what may not be joined (`check_joinable`), divides sums (`divide_by`), and takes part in an iteration of the others with
gradients of zero (`shadow_iteration`).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join, JoinHook

from ddpexec.ddp.parameters import broadcast_state
from ddpexec.groups.lost import naming_the_lost
from ddpexec.groups.process_groups import Communicator, wait

_WHAT = "the exchange of which ranks still have input"


def join(
    ddp: Any,
    divide_by_initial_world_size: bool = True,
    enable: bool = True,
    throw_on_early_termination: bool = False,
) -> Join:
    """Return a context in which ranks may have different numbers of inputs; see torch's class.

    Raises:
        OptionError: where ranks do more in an iteration than sum gradients.
    """
    if enable:
        ddp.check_joinable()
    return Join([ddp], enable, throw_on_early_termination, divide_by_initial_world_size=divide_by_initial_world_size)


def join_hook(ddp: Any, **kwargs: Any) -> ShadowHook:
    """Return what a rank that has run out of input does."""
    ddp._divide_by_initial_world_size = bool(kwargs.get("divide_by_initial_world_size", True))
    return ShadowHook(ddp)


def join_device(ddp: Any) -> torch.device:
    """Return the device of the join context's collectives."""
    communicator: Communicator = ddp.communicator
    return communicator.device_for(ddp.device)


def join_process_group(ddp: Any) -> dist.ProcessGroup:
    """Return the process group of the join context."""
    group: dist.ProcessGroup = ddp.process_group
    return group


def notify_join(ddp: Any) -> None:
    """Tell joined ranks of the coming forward; divide by those that still have input where that is asked."""
    work = Join.notify_join_context(ddp)
    if work is not None and not ddp._divide_by_initial_world_size:
        ddp.divide_by(active_ranks(work, ddp.communicator))
    elif work is not None:
        ddp.divide_by(ddp.communicator.world_size)


class ShadowHook(JoinHook):
    """What a rank without input does, once for every iteration of those that have some."""

    def __init__(self, ddp: Any) -> None:
        self._ddp = ddp

    def main_hook(self) -> None:
        """Take part in one iteration with gradients of zero."""
        self._ddp.shadow_iteration()

    def post_hook(self, is_last_joiner: bool) -> None:
        """Give every rank the model of the rank that trained longest."""
        ddp = self._ddp
        ddp.complete()
        source = ddp._authoritative_rank = common_rank(ddp, candidate=is_last_joiner)
        ignored = ddp.parameters_to_ignore
        broadcast_state(ddp.module, ddp.communicator, ignored, buffers=ddp.forward_sync_buffers, source=source)


def backward_is_synced(ddp: Any, *, joined: bool) -> bool:
    """Tell joined ranks whether the others reduce their gradients this iteration; each rank calls this."""
    flag = torch.tensor([float(not joined and ddp.require_backward_grad_sync)], device=join_device(ddp))
    with naming_the_lost(ddp.communicator, _WHAT):
        dist.all_reduce(flag, group=ddp.process_group)
    return bool(flag.item())


def common_rank(ddp: Any, *, candidate: bool) -> int:
    """Return the highest rank among the candidates; every rank calls this."""
    rank = torch.tensor([ddp.communicator.rank if candidate else -1], device=join_device(ddp))
    with naming_the_lost(ddp.communicator, _WHAT):
        dist.all_reduce(rank, op=dist.ReduceOp.MAX, group=ddp.process_group)
    return int(rank.item())


def active_ranks(work: Any, communicator: Communicator) -> int:
    """Return how many ranks still have input, from the notification that each of them sends before forward."""
    wait(work, communicator, _WHAT)
    return int(work.get_future().value()[0].item())
