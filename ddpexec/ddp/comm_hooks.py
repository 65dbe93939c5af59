"""Communication hooks: what a hook is given, and what is made of the future that it returns."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddpexec.ddp.flat import FlatBucket, SparseBucket
from ddpexec.errors import ExecutionError
from ddpexec.groups.process_groups import Communicator, FinishedWork, Work
from ddpexec.groups.timeouts import wait_within

Hook = Callable[[Any, Any], "torch.futures.Future[Any]"]


class GradBucket:
    """A bucket as a communication hook sees it, with the methods of torch's `dist.GradBucket`."""

    __slots__ = ("_buffer", "_index", "_last", "_parameters", "_views")

    def __init__(
        self, index: int, buffer: Tensor, views: Sequence[Tensor], parameters: Sequence[nn.Parameter], last: bool
    ) -> None:
        self._index, self._buffer, self._views = index, buffer, list(views)
        self._parameters, self._last = list(parameters), last

    def index(self) -> int:
        """Return the place in launch order."""
        return self._index

    def buffer(self) -> Tensor:
        """Return the flat gradients, not divided by the world size."""
        return self._buffer

    def gradients(self) -> list[Tensor]:
        """Return a view of the buffer for each parameter."""
        return list(self._views)

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters whose gradients lie in the buffer, in its order."""
        return list(self._parameters)

    def is_last(self) -> bool:
        """Whether no bucket of this iteration follows."""
        return self._last

    def set_buffer(self, buffer: Tensor) -> None:
        """Replace the flat gradients."""
        self._buffer = buffer


class HookWork:
    """The reduction of a bucket by a hook: what its future holds is the bucket's `reduced` once it is waited for.

    Attributes:
        future: that the hook returned.
    """

    def __init__(self, future: torch.futures.Future[Any], bucket: FlatBucket | SparseBucket) -> None:
        self.future, self._bucket = future, bucket

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the hook's future.

        Raises:
            ExecutionError: it holds something else than one tensor of the bucket's size.
        """
        bucket = self._bucket
        sent = None if bucket.elements is None else bucket.buffer
        bucket.reduced = result_of(self.future, bucket.number, sent, timeout)
        return True


def reduce_by_hook(
    hook: Hook, state: object, bucket: FlatBucket | SparseBucket, *, last: bool
) -> Callable[[Sequence[Work]], Work]:
    """Return what has `hook(state, bucket)` reduce a bucket; `last` is whether none of an iteration follows it."""

    def send(_: Sequence[Work]) -> Work:
        grad_bucket = GradBucket(bucket.number, bucket.buffer, bucket.views, bucket.parameters, last)
        return HookWork(hook(state, grad_bucket), bucket)

    return send


def check_hook(hook: object) -> None:
    """Raise TypeError or ValueError unless `hook(state, bucket)` can be a communication hook, as torch checks it."""
    if not callable(hook):
        raise TypeError(f"Communication hook must be callable, got {hook!r}")
    try:
        signature = inspect.signature(hook, eval_str=True)
    except NameError:  # an annotation that names what only a type checker knows
        signature = inspect.signature(hook)
    try:
        signature.bind(None, None)
    except TypeError:
        raise ValueError(f"Communication hook must take (state, bucket), it takes {signature}") from None
    bucket = signature.parameters.get("bucket")
    if bucket is not None and bucket.annotation not in (inspect.Parameter.empty, dist.GradBucket, GradBucket):  # type: ignore[attr-defined]
        raise ValueError(
            f"Communication hook: bucket annotation should be dist.GradBucket, it is {bucket.annotation!r}"
        )
    returned = signature.return_annotation
    if returned not in (inspect.Signature.empty, torch.futures.Future[torch.Tensor]):
        raise ValueError(
            f"Communication hook: return annotation should be torch.futures.Future[torch.Tensor], it is {returned!r}"
        )


def result_of(future: torch.futures.Future[Any], number: int, sent: Tensor | None, timeout: timedelta | None) -> Tensor:
    """Wait for a hook's future and return its one tensor, which must have as many elements as `sent`, where given.

    Of complex numbers it may hold the real and imaginary parts, as the future of torch's allreduce does.

    Raises:
        ExecutionError: the hook returned something else.
    """
    if not isinstance(future, torch._C.Future):
        raise ExecutionError(
            f"callback must return a torch.futures.Future object, but got {type(future).__name__} for bucket {number}",
            remedy="let the communication hook return a future of one tensor",
        )
    value = wait_within(future, timeout)
    if isinstance(value, (list, tuple)) and len(value) == 1:
        value = value[0]
    if isinstance(value, Tensor) and sent is not None:
        if sent.is_complex() and not value.is_complex() and value.shape[-1:] == (2,):
            value = torch.view_as_complex(value)
        if value.numel() == sent.numel():
            return value
        held = f"{value.numel()} elements, the bucket {sent.numel()}"
    elif isinstance(value, Tensor):
        return value
    else:
        held = type(value).__name__
    raise ExecutionError(
        f"the communication hook's future of bucket {number} holds {held}",
        remedy="let it hold one tensor of the bucket's size",
    )


def make_averaging_hook(communicator: Communicator, dtype: torch.dtype | None = None) -> Hook:
    """Return a hook that sums a bucket over the ranks of `communicator` and divides the sum by their number.

    The reducer without a hook divides first; with a number of ranks that is no power of two the two round differently.

    Args:
        communicator: where buckets are sent.
        dtype: of the sum and of what the hook returns; None is the bucket's.
    """

    def average(_: object, bucket: GradBucket) -> torch.futures.Future[Any]:
        buffer = bucket.buffer() if dtype is None else bucket.buffer().to(dtype)
        work = communicator.all_reduce(buffer, bucket.index())
        return make_future(work, buffer, communicator.world_size)

    return average


def make_future(work: Any, buffer: Tensor, divisor: int) -> torch.futures.Future[Any]:
    """Return a future of `buffer`, divided by `divisor` once `work` has summed it."""
    if isinstance(work, FinishedWork):
        done: torch.futures.Future[Any] = torch.futures.Future()
        done.set_result(buffer.div_(divisor))
        return done
    future = cast("torch.futures.Future[Any]", work.get_future())
    return future.then(lambda summed: (summed.value(), buffer.div_(divisor))[1])
