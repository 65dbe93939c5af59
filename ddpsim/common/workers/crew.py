"""`WorkerPool`: the interface of what computes points, processes of this machine, a cluster, or a user's executor.

`Points` (`points`) is its only caller: it submits, and where a future's error `is_lost`, asks for a `renew` and submits
again.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, Protocol

from ddpsim.common.errors import InputError

AT_ONCE = 32
"""Points submitted at a time to an executor whose number of workers is unknown: a small cluster's."""


class WorkersError(InputError):
    """Workers that cannot be used: out of reach, of another version, or lost."""


class WorkerPool(Protocol):
    """Workers that compute points, some of which may be lost.

    Attributes:
        count: points it computes at once.
    """

    count: int

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Return the future of one call."""

    def is_lost(self, error: BaseException) -> bool:
        """Whether `error` of a future says that the worker which had the point is gone."""

    def convert_error(self, error: BaseException) -> BaseException:
        """Return what to raise for any other `error` of a future: for one of the pool's own, a `WorkersError`."""

    def check(self) -> None:
        """Raise an error where points will never be answered, so that the wait for them ends."""

    def renew(self) -> bool:
        """Start workers anew where that can be done; return whether lost points are to be submitted again."""

    def dismiss(self) -> None:
        """Let go of what is still under way."""


def crew_of(executor: Executor | WorkerPool | None) -> WorkerPool | None:
    """Return the pool behind an argument `executor`: a user's own executor wrapped, a pool as it is.

    Raises:
        InputError: neither of them.
    """
    if isinstance(executor, Executor):
        return BorrowedPool(executor)
    if executor is not None and not hasattr(executor, "renew"):
        remedy = "give a `concurrent.futures.Executor`; a Dask client has one, `client.get_executor()`"
        raise InputError(f"a `{type(executor).__name__}` is no executor", place="executor", remedy=remedy)
    return executor


class BorrowedPool:
    """A user's own executor, which is not ours to start anew or to end."""

    def __init__(self, executor: Executor, count: int = AT_ONCE) -> None:
        self._executor, self.count = executor, count

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Return the future of one call."""
        return self._executor.submit(function, *arguments)

    def is_lost(self, error: BaseException) -> bool:
        """Say of no error that a worker is gone: each is raised as the executor raises it."""
        return False

    def convert_error(self, error: BaseException) -> BaseException:
        """Return the error as it is."""
        return error

    def check(self) -> None:
        """Wait on: the executor is its owner's to watch."""

    def renew(self) -> bool:
        """Say that there are no others."""
        return False

    def dismiss(self) -> None:
        """Leave the executor as it is: its owner ends it."""
