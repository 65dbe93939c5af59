"""Uneven inputs: a rank that has run out shadows the collectives of those that have not."""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join, Joinable, JoinHook

from ddpexec.ddp.drop import LayerDrop
from ddpexec.ddp.parameters import broadcast_state
from ddpexec.ddp.reducer import Reducer
from ddpexec.ddp.wrapped import WrappedModule
from ddpexec.errors import OptionError
from ddpexec.groups.lost import naming_the_lost
from ddpexec.groups.process_groups import Communicator, wait

_WHAT = "the exchange of which ranks still have input"


class UnevenInputs(Joinable):
    """Mixed into our `DistributedDataParallel`: what `Join` asks of it."""

    reducer: Reducer
    communicator: Communicator
    process_group: dist.ProcessGroup
    device: torch.device
    drop: LayerDrop | None
    _divide_by_initial_world_size: bool

    def join(
        self,
        divide_by_initial_world_size: bool = True,
        enable: bool = True,
        throw_on_early_termination: bool = False,
    ) -> Join:
        """Return a context in which ranks may have different numbers of inputs; see torch's class."""
        return Join(
            [self], enable, throw_on_early_termination, divide_by_initial_world_size=divide_by_initial_world_size
        )

    def join_hook(self: WrappedModule, **kwargs: Any) -> ShadowHook:
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
        if self._join_config.enable and self.drop is not None:
            raise OptionError(
                "drop and join() do not go together: a rank without input cannot tell which buckets others leave out",
                remedy="leave drop out, or give every rank as many inputs and leave join() out",
            )
        work = Join.notify_join_context(self)
        if work is not None and not self._divide_by_initial_world_size:
            self.divide_by(active_ranks(work, self.communicator))
        elif work is not None:
            self.divide_by(self.communicator.world_size)

    def divide_by(self, ranks: int) -> None:
        """Divide the coming sums by `ranks`."""
        self.reducer.divisor = ranks


class ShadowHook(JoinHook):
    """What a rank without input does, once for every iteration of those that have some."""

    def __init__(self, ddp: WrappedModule) -> None:
        self._ddp = ddp

    def main_hook(self) -> None:
        """Take part in one iteration with gradients of zero."""
        ddp = self._ddp
        ddp.executor.check_finished()
        ddp.reducer.rebuild()
        if ddp.buffers_due(after_forward=False):
            ddp.buffer_sync.synchronise(common_rank(ddp, candidate=False))
        synced = backward_is_synced(ddp, joined=True)
        ddp.require_forward_param_sync = synced
        if synced:
            ddp.executor.shadow()

    def post_hook(self, is_last_joiner: bool) -> None:
        """Give every rank the model of the rank that trained longest."""
        ddp = self._ddp
        source = ddp._authoritative_rank = common_rank(ddp, candidate=is_last_joiner)
        broadcast_state(
            ddp.module, ddp.communicator, ddp.parameters_to_ignore, buffers=ddp.forward_sync_buffers, source=source
        )


class JoinParticipant(Protocol):
    """What the exchange between ranks with and without input asks of a wrapper."""

    @property
    def communicator(self) -> Communicator:
        """Of the ranks."""

    @property
    def process_group(self) -> dist.ProcessGroup:
        """Of the exchange."""

    @property
    def device(self) -> torch.device:
        """Of the parameters."""

    @property
    def require_backward_grad_sync(self) -> bool:
        """Whether the coming backward reduces gradients."""


def backward_is_synced(ddp: JoinParticipant, *, joined: bool) -> bool:
    """Tell joined ranks whether the others reduce their gradients this iteration; each rank calls this."""
    flag = torch.tensor([float(not joined and ddp.require_backward_grad_sync)], device=_control(ddp))
    with naming_the_lost(ddp.communicator, _WHAT):
        dist.all_reduce(flag, group=ddp.process_group)
    return bool(flag.item())


def common_rank(ddp: JoinParticipant, *, candidate: bool) -> int:
    """Return the highest rank among the candidates; every rank calls this."""
    rank = torch.tensor([ddp.communicator.rank if candidate else -1], device=_control(ddp))
    with naming_the_lost(ddp.communicator, _WHAT):
        dist.all_reduce(rank, op=dist.ReduceOp.MAX, group=ddp.process_group)
    return int(rank.item())


def active_ranks(work: Any, communicator: Communicator) -> int:
    """Return how many ranks still have input, from the notification that each of them sends before forward."""
    wait(work, communicator, _WHAT)
    return int(work.get_future().value()[0].item())


def _control(ddp: JoinParticipant) -> torch.device:
    return ddp.communicator.device_for(ddp.device)
