"""When a bucket may be launched."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from ddpsim.errors import DdpsimError


class MarkedTwiceError(DdpsimError):
    """The error of a gradient that is marked ready twice in one backward."""

    def __init__(self, index: int) -> None:
        self.index = index
        super().__init__(f"gradient {index} was marked ready twice in one backward")


class LaunchQueue:
    """Pending counts and strict bucket order: torch's rule for launching buckets, without torch.

    A bucket is launched when all its gradients are ready and every bucket before it has been launched. The caller
    brings ready events in any order and launches what `ready` returns, in the order returned.

    Args:
        buckets: parameter indices of each bucket, in launch order; each index in exactly one bucket.
        skipped: bucket indices that are never launched; the order closes over them.
    """

    __slots__ = ("_bucket_of", "_buckets", "_next", "_pending", "_seen", "_skipped")

    def __init__(self, buckets: Sequence[Sequence[int]], skipped: Collection[int] = ()) -> None:
        self._buckets = [tuple(bucket) for bucket in buckets]
        self._bucket_of = {index: number for number, bucket in enumerate(self._buckets) for index in bucket}
        self.reset(skipped)

    def reset(self, skipped: Collection[int] = ()) -> None:
        """Start a backward anew: every gradient pending, no bucket launched."""
        self._pending = [len(bucket) for bucket in self._buckets]
        self._seen: set[int] = set()
        self._skipped = frozenset(skipped)
        self._next = 0
        while self._next in self._skipped:
            self._next += 1

    def bucket_of(self, index: int) -> int:
        """Return the bucket of parameter `index`."""
        return self._bucket_of[index]

    @property
    def launched_all(self) -> bool:
        """Whether every bucket has been launched or skipped."""
        return self._next >= len(self._buckets)

    def ready(self, index: int) -> list[int]:
        """Mark gradient `index` ready and return the buckets that may now be launched, in order.

        Raises:
            MarkedTwiceError: where this gradient was marked before since the last `reset`.
        """
        seen, pending = self._seen, self._pending
        if index in seen:
            raise MarkedTwiceError(index)
        seen.add(index)
        number = self._bucket_of[index]
        pending[number] -= 1
        return [] if pending[number] or number != self._next else self._advance()

    def start(self, unused: Iterable[int] = ()) -> list[int]:
        """Mark the gradients that will not come ready and return the buckets that may now be launched.

        Called once a backward, at its first gradient, as torch does.
        """
        launched: list[int] = []
        for index in unused:
            launched += self.ready(index)
        return launched + self._advance()

    def missing(self) -> list[int]:
        """Return the gradients that have not been marked ready, ascending, of buckets that are not skipped."""
        return sorted(i for i, number in self._bucket_of.items() if i not in self._seen and number not in self._skipped)

    def _advance(self) -> list[int]:
        launched = []
        while self._next < len(self._buckets) and (self._next in self._skipped or self._pending[self._next] == 0):
            if self._next not in self._skipped:
                launched.append(self._next)
            self._next += 1
        return launched
