"""Sums of gradients that a communication hook of the user's carries out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ddpexec.ddp.comm_hooks import GradBucket, Hook, result_of
from ddpexec.errors import OptionError
from ddpexec.groups.lost import naming_the_lost
from ddpexec.groups.process_groups import Communicator, Work
from ddpexec.schedules.memory import FlatGradients
from ddpsim.operations import Operation
from ddpsim.schedules.message import WORLD
from ddpsim.schedules.schedule import Schedule, averages


class HookStream:
    """A hook lane hands the gradients of a message to a hook, and puts what its future holds in their place.

    Args:
        hook, state: the hook is called with `state` and a bucket.
        flat: the gradients, which are not divided.
        last: whether no message of the iteration follows.
        communicator: of the ranks.
    """

    def __init__(self, hook: Hook, state: Any, flat: FlatGradients, last: bool, communicator: Communicator) -> None:
        self._hook, self._state, self._flat, self._last = hook, state, flat, last
        self._communicator = communicator

    def launch(self, operation: Operation, tensor: Tensor, after: Sequence[Work], delay_s: float = 0.0) -> Work:
        """Call the hook; return the work of its future."""
        bucket = self._flat.bucket
        given = GradBucket(self._flat.number, bucket.buffer, bucket.views, bucket.parameters, self._last)
        return _HookWork(self._hook(self._state, given), self._flat, self._communicator)


class _HookWork:
    def __init__(self, future: torch.futures.Future[Any], flat: FlatGradients, communicator: Communicator) -> None:
        self._future, self._flat, self._communicator = future, flat, communicator

    def wait(self) -> bool:
        number, buffer = self._flat.number, self._flat.bucket.buffer
        what = f"the communication hook's reduction of bucket {number}"
        with naming_the_lost(self._communicator, what, others_code=True):
            reduced = result_of(self._future, number, buffer.numel())
        if reduced.data_ptr() != buffer.data_ptr():
            buffer.copy_(reduced.view(-1))
        return True

    def is_completed(self) -> bool:
        return self._future.done()


def check_hookable(schedule: Schedule) -> None:
    """Refuse a hook where what is summed is not whole buckets of gradients, by all ranks at once.

    Raises:
        OptionError: it names the message and says why.
    """
    for message in schedule:
        reasons = {
            "averages parameters": averages(message),
            f"is no allreduce but a {message.op}": message.op is not Operation.ALLREDUCE,
            f"is of the ranks of {message.group!r} alone": message.group != WORLD,
            "carries a part of a bucket": message.part is not None,
            "carries chosen chunks": message.chunks is not None,
            "is held back for a cycle": bool(message.delay_s),
        }
        for reason, holds in reasons.items():
            if holds:
                what = f"a communication hook reduces whole buckets of gradients, and message {message.id!r} {reason}"
                remedy = "use `ddp`, `naive`, `flat` or `priority`, or leave the hook out"
                raise OptionError(what, place=f"scheme {schedule.scheme}", remedy=remedy)
