"""Uneven inputs: a rank that has run out shadows the collectives of those that have not."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join, Joinable, JoinHook

from ddpexec.ddp.parameters import broadcast_state
from ddpexec.groups.lost import naming_the_lost
from ddpexec.groups.process_groups import Communicator, wait

_WHAT = "the exchange of which ranks still have input"


class UnevenInputs(Joinable):
    """What `Join` asks of a wrapper, of torch's constructor or of a scheme.

    Attributes:
        module: that is wrapped.
        communicator, process_group: of the ranks.
        device: of the parameters.
        parameters_to_ignore: names of parameters and buffers that ranks do not share.
    """

    module: nn.Module
    communicator: Communicator
    process_group: dist.ProcessGroup
    device: torch.device
    parameters_to_ignore: Collection[str] = ()
    require_backward_grad_sync: bool
    _divide_by_initial_world_size: bool
    _authoritative_rank: int

    def join(
        self,
        divide_by_initial_world_size: bool = True,
        enable: bool = True,
        throw_on_early_termination: bool = False,
    ) -> Join:
        """Return a context in which ranks may have different numbers of inputs; see torch's class.

        Raises:
            OptionError: where ranks do more in an iteration than sum gradients.
        """
        if enable:
            self.check_joinable()
        return Join(
            [self], enable, throw_on_early_termination, divide_by_initial_world_size=divide_by_initial_world_size
        )

    def join_hook(self, **kwargs: Any) -> ShadowHook:
        """Return what a rank that has run out of input does."""
        self._divide_by_initial_world_size = bool(kwargs.get("divide_by_initial_world_size", True))
        return ShadowHook(self)

    @property
    def join_device(self) -> torch.device:
        """Device of the join context's collectives."""
        return self.communicator.device_for(self.device)

    @property
    def join_process_group(self) -> dist.ProcessGroup:
        """Process group of the join context."""
        return self.process_group

    def notify_join(self) -> None:
        """Tell joined ranks of the coming forward; divide by those that still have input where that is asked."""
        work = Join.notify_join_context(self)
        if work is not None and not self._divide_by_initial_world_size:
            self.divide_by(active_ranks(work, self.communicator))
        elif work is not None:
            self.divide_by(self.communicator.world_size)

    # ---- what a wrapper does

    def check_joinable(self) -> None:
        """Raise where a rank without input could not take part."""

    def divide_by(self, ranks: int) -> None:
        """Divide the coming sums by `ranks`."""
        raise NotImplementedError

    def shadow_iteration(self) -> None:
        """Take part in an iteration of the ranks that have input, with gradients of zero."""
        raise NotImplementedError

    def complete(self) -> None:
        """Bring the parameters up to date."""

    @property
    def shares_buffers(self) -> bool:
        """Whether ranks end with the same buffers."""
        return True


class ShadowHook(JoinHook):
    """What a rank without input does, once for every iteration of those that have some."""

    def __init__(self, ddp: UnevenInputs) -> None:
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
        broadcast_state(ddp.module, ddp.communicator, ignored, buffers=ddp.shares_buffers, source=source)


def backward_is_synced(ddp: UnevenInputs, *, joined: bool) -> bool:
    """Tell joined ranks whether the others reduce their gradients this iteration; each rank calls this."""
    flag = torch.tensor([float(not joined and ddp.require_backward_grad_sync)], device=_control(ddp))
    with naming_the_lost(ddp.communicator, _WHAT):
        dist.all_reduce(flag, group=ddp.process_group)
    return bool(flag.item())


def common_rank(ddp: UnevenInputs, *, candidate: bool) -> int:
    """Return the highest rank among the candidates; every rank calls this."""
    rank = torch.tensor([ddp.communicator.rank if candidate else -1], device=_control(ddp))
    with naming_the_lost(ddp.communicator, _WHAT):
        dist.all_reduce(rank, op=dist.ReduceOp.MAX, group=ddp.process_group)
    return int(rank.item())


def active_ranks(work: Any, communicator: Communicator) -> int:
    """Return how many ranks still have input, from the notification that each of them sends before forward."""
    wait(work, communicator, _WHAT)
    return int(work.get_future().value()[0].item())


def _control(ddp: UnevenInputs) -> torch.device:
    return ddp.communicator.device_for(ddp.device)
