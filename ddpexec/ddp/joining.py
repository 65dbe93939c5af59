"""Iterations that send nothing, and uneven inputs.

A rank that has run out of input shadows the collectives of those that have not, as torch's `Joinable` asks of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join, Joinable, JoinHook

from ddpexec.ddp.drop import LayerDrop
from ddpexec.ddp.options import make_mixed_precision_error
from ddpexec.ddp.parameters import BufferSynchroniser, broadcast_state
from ddpexec.ddp.refusals import check_joinable
from ddpexec.ddp.scheduled import ScheduledModule
from ddpexec.errors import OptionError
from ddpexec.groups.lost import name_lost_ranks
from ddpexec.groups.process_groups import Communicator, wait
from ddpexec.groups.timeouts import wait_within

_WHAT = "the exchange of which ranks still have input"


class JoinableModule(ScheduledModule, Joinable):
    """Wraps a module that is trained data parallel, by ranks that may have different numbers of inputs.

    Attributes:
        drop: leaves layers out of an iteration; None leaves none.
        buffer_sync: makes buffers equal.
        forward_sync_buffers: whether it does so around a forward.
        require_forward_param_sync: whether it does so around the coming one.
    """

    drop: LayerDrop | None
    buffer_sync: BufferSynchroniser
    forward_sync_buffers: bool
    require_forward_param_sync: bool
    parameters_to_ignore: Collection[str]
    _authoritative_rank: int

    def __init__(self, module: nn.Module, communicator: Communicator) -> None:
        ScheduledModule.__init__(self, module, communicator)
        Joinable.__init__(self)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients locally; the first backward whose forward is outside reduces what has accumulated.

        A step of a scheme's optimizer inside is taken with this rank's gradients alone.
        """
        if self.mixed is not None:
            raise make_mixed_precision_error("no_sync()")
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

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
        divide = divide_by_initial_world_size
        return Join([self], enable, throw_on_early_termination, divide_by_initial_world_size=divide)

    def join_hook(self, **kwargs: Any) -> JoinHook:
        """Return what a rank that has run out of input does."""
        self._divide_by_initial_world_size = bool(kwargs.get("divide_by_initial_world_size", True))
        return _Shadow(self)

    @property
    def join_device(self) -> torch.device:
        """The device of the join context's collectives."""
        return self.communicator.device_for(self.device)

    @property
    def join_process_group(self) -> dist.ProcessGroup:
        """The process group of the join context."""
        return self.process_group

    def check_joinable(self) -> None:
        """Raise where layers are left out, or the scheme has ranks do more in an iteration than sum gradients."""
        if self.drop is not None:
            what = "drop and join() do not go together: a rank without input cannot tell which buckets others leave out"
            raise OptionError(what, remedy="leave drop out, or give every rank as many inputs and leave join() out")
        self._check_learned("join()")
        if self.schedule is not None:
            check_joinable(self.schedule)

    def shadow_iteration(self) -> None:
        """Take part in an iteration of the ranks that have input, with gradients of zero; step nothing."""
        self.executor.check_finished()
        self.reducer.rebuild()
        synced = self.backward_is_synced(joined=True)
        if self.schedule is not None:
            self.require_forward_param_sync = synced
        if self.buffers_due(after_forward=False):
            self.buffer_sync.synchronise(self.common_rank(candidate=False))
        self.require_forward_param_sync = synced
        if synced:
            if self.mixed is not None:
                self.mixed.lower()
            with self.reducer.zero_gradients():
                self._begin(local=False)
                self.executor.shadow()

    def buffers_due(self, *, after_forward: bool) -> bool:
        """Whether buffers are synchronised before, or after, this forward."""
        here = self.buffer_sync.after_forward == after_forward
        here &= self.schedule is None or self.schedule.broadcasts_buffers
        return here and self.require_forward_param_sync and self.forward_sync_buffers

    def notify_join(self) -> None:
        """Announce the coming forward to joined ranks; divide by the ranks that still have input, if configured."""
        work: Any = Join.notify_join_context(self)
        if work is not None:
            ranks = self.communicator.world_size
            if not self._divide_by_initial_world_size:
                wait(work, self.communicator, _WHAT)
                ranks = int(work.get_future().value()[0].item())
            self.reducer.divide_by(ranks)

    def backward_is_synced(self, *, joined: bool) -> bool:
        """Tell joined ranks whether the others reduce their gradients this iteration; each rank calls this."""
        synced = float(not joined and self.require_backward_grad_sync)
        return bool(self._sum_over_ranks(torch.tensor([synced], device=self.join_device), dist.ReduceOp.SUM))

    def common_rank(self, *, candidate: bool) -> int:
        """Return the highest rank among the candidates; every rank calls this."""
        rank = self.communicator.rank if candidate else -1
        return int(self._sum_over_ranks(torch.tensor([rank], device=self.join_device), dist.ReduceOp.MAX))

    def buffers_source(self) -> int:
        """Return whose buffers are taken: rank 0's, or of joined ranks one that has input."""
        return self.common_rank(candidate=True) if self._join_config.enable else 0

    def _sum_over_ranks(self, value: Tensor, operation: Any) -> float:
        with name_lost_ranks(self.communicator, _WHAT):
            work = dist.all_reduce(value, op=operation, group=self.process_group, async_op=True)
            wait_within(work, self.communicator.timeout)
        return value.item()


class _Shadow(JoinHook):
    """What a rank without input does: an iteration for each of those that have some, then it takes their model."""

    def __init__(self, wrapper: JoinableModule) -> None:
        self._wrapper = wrapper

    def main_hook(self) -> None:
        self._wrapper.shadow_iteration()

    def post_hook(self, is_last_joiner: bool) -> None:
        wrapper = self._wrapper
        wrapper.complete()
        source = wrapper._authoritative_rank = wrapper.common_rank(candidate=is_last_joiner)
        ignored, buffers = wrapper.parameters_to_ignore, wrapper.forward_sync_buffers
        broadcast_state(wrapper.module, wrapper.communicator, ignored, buffers=buffers, source=source)
