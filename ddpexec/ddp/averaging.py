"""The reduction as a communication hook: sum in a type of choice, then divide, as torch's mixed precision does."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from ddpexec.ddp.comm_hooks import GradBucket, Hook
from ddpexec.groups.process_groups import Communicator, FinishedWork


def averaging(communicator: Communicator, dtype: torch.dtype | None = None) -> Hook:
    """Return a hook that sums a bucket over the ranks of `communicator` and divides the sum by their number.

    The reducer without a hook divides first; with a number of ranks that is no power of two the two round differently.

    Args:
        communicator: where buckets are sent.
        dtype: of the sum and of what the hook returns; None is the bucket's.
    """

    def average(_: object, bucket: GradBucket) -> torch.futures.Future[Any]:
        buffer = bucket.buffer() if dtype is None else bucket.buffer().to(dtype)
        work = communicator.all_reduce(buffer, bucket.index())
        return after(work, buffer, communicator.world_size)

    return average


def after(work: Any, buffer: Tensor, divisor: int) -> torch.futures.Future[Any]:
    """Return a future of `buffer`, divided by `divisor` once `work` has summed it."""
    if isinstance(work, FinishedWork):
        done: torch.futures.Future[Any] = torch.futures.Future()
        done.set_result(buffer.div_(divisor))
        return done
    future = cast("torch.futures.Future[Any]", work.get_future())
    return future.then(lambda summed: (summed.value(), buffer.div_(divisor))[1])
