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

from ddpexec.ddp.mixed import MixedPrecision
from ddpexec.ddp.options import make_mixed_precision_error
from ddpexec.ddp.parameters import broadcast_state
from ddpexec.groups.lost import name_lost_ranks
from ddpexec.groups.process_groups import Communicator, wait
from ddpexec.groups.waiting import wait_within

_WHAT = "the exchange of which ranks still have input"


class JoinableModule(nn.Module, Joinable):
    """Wraps a module that is trained data parallel, by ranks that may have different numbers of inputs.

    A wrapper says what may not be joined (`check_joinable`), brings its parameters up to date (`complete`), and takes
    part in an iteration of other ranks with gradients of zero (`shadow_iteration`).

    Args:
        module: that is wrapped.
        communicator: of the ranks.

    Attributes:
        reducer: the schedule in force, which is told by how many ranks sums are divided.
        device: of the first parameter.
        mixed: lowers the parameters' precision in an iteration; None leaves it.
        require_backward_grad_sync: whether the coming iteration's gradients are reduced.
    """

    module: nn.Module
    reducer: Any
    device: torch.device
    mixed: MixedPrecision | None
    parameters_to_ignore: Collection[str]
    forward_sync_buffers: bool
    _authoritative_rank: int

    def __init__(self, module: nn.Module, communicator: Communicator) -> None:
        nn.Module.__init__(self)
        Joinable.__init__(self)
        self.module, self.communicator, self.process_group = module, communicator, communicator.main
        self.require_backward_grad_sync = True

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
        """Raise OptionError where a rank without input could not take part."""
        raise NotImplementedError

    def complete(self) -> None:
        """Carry out what is still to be carried out, so that the parameters are those after the last step."""

    def shadow_iteration(self) -> None:
        """Take part in an iteration of the ranks that have input, with gradients of zero."""
        raise NotImplementedError

    def notify_join(self) -> None:
        """Tell joined ranks of the coming forward; divide by those that still have input where that is asked."""
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
