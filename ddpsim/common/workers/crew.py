"""A crew is who computes points: this process, processes of this machine, or a cluster's workers."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, Protocol

from ddpsim.common.errors import InputError

AT_ONCE = 32
"""Points given at a time to an executor that does not say how many it computes at once: a small cluster's."""


class WorkersError(InputError):
    """Workers that cannot be used: out of reach, of another version, or lost."""


class WorkerPool(Protocol):
    """What takes points, and is told of lost workers.

    Attributes:
        count: points it computes at once.
    """

    count: int

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Return the future of one call."""

    def is_lost(self, error: BaseException) -> bool:
        """Whether `error` of a future says that the worker which had the point is gone."""

    def convert_error(self, error: BaseException) -> BaseException:
        """Return what to raise of any other `error` of a future: one of the crew's own in words of this project."""

    def check(self) -> None:
        """Raise what ends the wait for points that nobody will answer any more."""

    def renew(self) -> bool:
        """Whether there are workers again, and points that were lost are to be given to them once more."""

    def dismiss(self) -> None:
        """Let go of what is still under way."""


def crew_of(executor: Executor | WorkerPool | None) -> WorkerPool | None:
    """Return the crew that an argument `executor` stands for: somebody's own executor, or a crew as it is.

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
    """A crew of somebody's own executor, which is not ours to start anew or to end."""

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
