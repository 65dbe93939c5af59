"""Messages that a rank sends to itself, as it does where a server and a training rank share a process.

gloo sends between ranks only. Here a send and a receive of one tag meet, and the later of the two copies.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Sequence
from concurrent.futures import Future, wait
from datetime import timedelta

import torch.distributed as dist
from torch import Tensor

from ddpexec.groups.process_groups import Work, timeout_of


class LoopbackWork(Future[None]):
    """A message of a rank to itself, or its receipt; it waits for the other of the two."""

    def __init__(self, tensor: Tensor) -> None:
        super().__init__()
        self.tensor = tensor

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until it has been copied.

        Raises:
            BaseException: what made the other end fail.
            DistBackendError: it was not within `timeout`.
        """
        if timeout is not None and not wait([self], timeout.total_seconds()).done:
            raise dist.DistBackendError(f"timed out: a rank's message to itself took {timeout.total_seconds():g} s")
        self.result()
        return True


class LoopbackGroup:
    """Sends and receives of a gloo group, and those of a rank to itself within its process.

    Args:
        group: of all ranks.

    Attributes:
        timeout: of the group's.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group, self._own, self.timeout = group, group.rank(), timeout_of(group)
        self._lock = threading.Lock()
        self._sends: defaultdict[int, deque[LoopbackWork]] = defaultdict(deque)
        self._receives: defaultdict[int, deque[LoopbackWork]] = defaultdict(deque)
        self._error: BaseException | None = None

    def rank(self) -> int:
        """Return this rank."""
        return self._own

    def send(self, tensors: Sequence[Tensor], to: int, tag: int) -> Work:
        """Begin to send the one tensor of a list to a rank; it may be changed when the work has ended."""
        if to != self._own:
            work: Work = self._group.send(list(tensors), to, tag)
            return work
        return self._meet(LoopbackWork(tensors[0]), self._sends[tag], self._receives[tag], sends=True)

    def recv(self, tensors: Sequence[Tensor], source: int, tag: int) -> Work:
        """Begin to receive what a rank sends by `tag`, into the one tensor of a list."""
        if source != self._own:
            work: Work = self._group.recv(list(tensors), source, tag)
            return work
        return self._meet(LoopbackWork(tensors[0]), self._receives[tag], self._sends[tag], sends=False)

    def fail(self, error: BaseException) -> None:
        """Have all that wait for this rank's own messages, and whoever will, raise `error`."""
        with self._lock:
            self._error = error
            for waiting in [*self._sends.values(), *self._receives.values()]:
                while waiting:
                    waiting.popleft().set_exception(error)

    def _meet(
        self, mine: LoopbackWork, own: deque[LoopbackWork], others: deque[LoopbackWork], *, sends: bool
    ) -> LoopbackWork:
        with self._lock:
            if self._error is not None or not others:
                if self._error is None:
                    own.append(mine)
                else:
                    mine.set_exception(self._error)
                return mine
            other = others.popleft()
        sent, received = (mine, other) if sends else (other, mine)
        received.tensor.copy_(sent.tensor)
        sent.set_result(None)
        received.set_result(None)
        return mine


PointToPoint = dist.ProcessGroup | LoopbackGroup
"""What sends to a rank, and receives from it, by a tag."""
