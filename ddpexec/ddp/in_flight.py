"""Buckets on their way: sent in launch order, waited for and written back in the same order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from ddpexec.ddp.buckets import AnyBucket, Buckets
from ddpexec.ddp.comm_hooks import GradBucket, Hook, result_of
from ddpexec.ddp.flat import FlatBucket
from ddpexec.groups.lost import naming_the_lost, raise_lost
from ddpexec.groups.process_groups import Communicator, Work
from ddpexec.timing.observe import Observer

Pending = Work | torch.futures.Future[Any]


class InFlight:
    """Sends the buckets of one backward, and brings the reduced gradients back to the parameters.

    Args:
        buckets: those of the plan in force.
        communicator: where allreduces go.
        observer: takes the moments of each bucket; None takes none.
    """

    def __init__(self, buckets: Buckets, communicator: Communicator, observer: Observer | None) -> None:
        self._buckets, self._communicator, self.observer = buckets, communicator, observer
        self.hook: tuple[Hook, Any] | None = None
        self.after_bucket: Callable[[list[nn.Parameter]], None] | None = None
        self.works: list[tuple[AnyBucket, Pending]] = []

    def launch(self, numbers: Sequence[int], divisor: int | None) -> None:
        """Complete these buckets, each gradient divided by `divisor`, and send them."""
        for number in numbers:
            bucket = self._buckets.all[number]
            bucket.complete(divisor)
            position = len(self.works)
            if self.observer is None:
                self.works.append((bucket, self.send(bucket, position)))
            else:
                begin = self.observer.now()
                work = self.send(bucket, position)
                self.works.append((bucket, work))
                self.observer.launched(number, bucket.indices, bucket.size_bytes, begin, work)

    def send(self, bucket: AnyBucket, position: int) -> Pending:
        """Start reducing what lies in `bucket`, as the `position`-th collective of this iteration."""
        if self.hook is None:
            return self._communicator.all_reduce(bucket.buffer, position)
        hook, state = self.hook
        views = bucket.views if isinstance(bucket, FlatBucket) else [bucket.buffer]
        last = bucket.number == len(self._buckets.all) - 1
        return hook(state, GradBucket(bucket.number, bucket.buffer, views, bucket.parameters, last))

    def wait(self, work: Pending, bucket: AnyBucket) -> Tensor:
        """Wait for `send` to end and return the reduced tensor."""
        if self.hook is not None:
            what = f"the communication hook's reduction of bucket {bucket.number}"
            with naming_the_lost(self._communicator, what, others_code=True):
                size = bucket.buffer.numel() if isinstance(bucket, FlatBucket) else None
                return result_of(cast("torch.futures.Future[Any]", work), bucket.number, size)
        try:
            work.wait()
        except RuntimeError as error:
            what = f"the allreduce of bucket {bucket.number} ({bucket.size_bytes:,} B)"
            raise_lost(self._communicator, what, error)
        return bucket.buffer

    def shadow(self) -> int:
        """Take part in the reduction of all buckets with gradients of zero; return how many there are."""
        zeros = [bucket.of_zeros() for bucket in self._buckets.all]
        works = [(bucket, self.send(bucket, position)) for position, bucket in enumerate(zeros)]
        for bucket, work in works:
            self.wait(work, bucket)
        return len(works)

    def finish(self, untouched: Callable[[AnyBucket], Collection[int]] | None) -> list[int]:
        """Wait for every bucket, write it back, and return the buckets' numbers in launch order.

        `untouched` tells which parameters of a bucket are to stay as they are; None where no parameter of the model is.
        Small neighbours are then written back together, unless something is to be done after each bucket.
        """
        each = untouched is not None or self.hook is not None or self.after_bucket is not None
        if not each and len(self.works) == len(self._buckets.all):
            self._finish_runs()
        else:
            for position, (bucket, _) in enumerate(self.works):
                (reduced,) = self._wait(position, position + 1)
                bucket.write_back(reduced, () if untouched is None else untouched(bucket))
                if self.after_bucket is not None:
                    self.after_bucket(bucket.parameters)
                self._note_written(position, position + 1)
        numbers = [bucket.number for bucket, _ in self.works]
        self.works = []
        return numbers

    def _finish_runs(self) -> None:
        start = 0
        for run in self._buckets.runs:
            stop = start + len(run.buckets)
            self._wait(start, stop)
            run.write_back()
            self._note_written(start, stop)
            start = stop

    def _wait(self, start: int, stop: int) -> list[Tensor]:
        works, observer = self.works[start:stop], self.observer
        if observer is None:
            return [self.wait(work, bucket) for bucket, work in works]
        reduced = []
        for position, (bucket, work) in enumerate(works, start):
            begin = observer.now()
            reduced.append(self.wait(work, bucket))
            observer.waited(position, begin)
        return reduced

    def _note_written(self, start: int, stop: int) -> None:
        if self.observer is not None:
            for position in range(start, stop):
                self.observer.written(position)
