"""Uneven inputs under a scheme: a rank that has run out sends zeros along with those that have not."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.algorithms.join import Join, JoinHook

from ddpexec.ddp.executor import Executor
from ddpexec.ddp.joining import UnevenInputs, backward_is_synced, common_rank
from ddpexec.ddp.parameters import broadcast_state
from ddpexec.errors import OptionError
from ddpexec.schedules.interpreter import ScheduleReducer
from ddpsim.schedules.message import WORLD
from ddpsim.schedules.schedule import Schedule, averages


class UnevenSteps(UnevenInputs):
    """Mixed into `ScheduledDataParallel`: what `Join` asks of it."""

    module: nn.Module
    executor: Executor
    interpreter: ScheduleReducer
    drop = None

    def join(self, *arguments: Any, **options: Any) -> Join:
        """Return a context in which ranks may have different numbers of inputs; see torch's class.

        Raises:
            OptionError: a scheme whose ranks do more in a step than send gradients.
        """
        check_joinable(self.interpreter.schedule)
        return super().join(*arguments, **options)

    def join_hook(self, **kwargs: Any) -> JoinHook:  # type: ignore[override]
        """Return what a rank that has run out of input does."""
        self._divide_by_initial_world_size = bool(kwargs.get("divide_by_initial_world_size", True))
        return _Shadow(self)

    def divide_by(self, ranks: int) -> None:
        """Divide the coming sums by `ranks`."""
        self.interpreter.divide_by(ranks)

    @property
    def require_backward_grad_sync(self) -> bool:
        """Whether the coming backward sends gradients."""
        raise NotImplementedError

    def synchronise_buffers(self, source: int) -> None:
        """Take the buffers of rank `source`, where buffers are broadcast."""
        raise NotImplementedError


class _Shadow(JoinHook):
    """What a rank without input does, once for every iteration of those that have some."""

    def __init__(self, made: UnevenSteps) -> None:
        self._made = made

    def main_hook(self) -> None:
        """Take part in one iteration with gradients of zero, and step nothing."""
        made = self._made
        if backward_is_synced(made, joined=True):
            made.synchronise_buffers(common_rank(made, candidate=False))
            made.executor.shadow()

    def post_hook(self, is_last_joiner: bool) -> None:
        """Give every rank the model of the rank that trained longest."""
        made = self._made
        made.interpreter.complete()
        source = common_rank(made, candidate=is_last_joiner)
        broadcast_state(made.module, made.communicator, (), buffers=True, source=source)


def check_joinable(schedule: Schedule) -> None:
    """Refuse uneven inputs where a step is more than gradients that all ranks sum.

    Raises:
        OptionError: it says what else a rank without input would have to do.
    """
    reasons = {
        "update by gradients that are pushed to servers": bool(schedule.sharding.servers),
        "update its part of the parameters": schedule.sharding.optimizer > 1,
        "average parameters that it has not trained": any(map(averages, schedule)),
        "choose chunks": any(message.chunks is not None for message in schedule),
        "sum with the ranks of a group alone": any(message.group != WORLD for message in schedule),
    }
    for reason, holds in reasons.items():
        if holds:
            what = f"join(): a rank without input would have to {reason}"
            remedy = "give every rank as many inputs, or use `ddp`, `naive`, `flat`, `priority` or `dear`"
            raise OptionError(what, place=f"scheme {schedule.scheme}", remedy=remedy)
