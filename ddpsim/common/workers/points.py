"""`Points`: the loop over a command's points, each computed once by some worker, none lost with a worker.

Start at `__next__`: `_fill` submits as many points as the pool computes at once and one more for each, `_land` takes in
finished futures. The invariant: a position is in exactly one of `_waiting`, `_flying`, `_landed` and `_failed`, or has
been yielded.
"""

from __future__ import annotations

import pickle
import platform
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from functools import lru_cache
from typing import Any, Generic, TypeVar

from ddpsim.common.version import __version__
from ddpsim.common.workers.crew import WorkerPool, WorkersError

Item = TypeVar("Item")
Result = TypeVar("Result")

_AHEAD = 2
"""Points submitted for each that is computed at once: one to compute, one so that no worker waits for the next."""

_LOOKS_S = 1.0
"""Seconds between two checks of whether the pool is still there, while no point is done."""


class Points(Generic[Item, Result]):
    """An iterator over (position, result) of every item, each as it is done.

    An item whose worker is lost is submitted once more, alone. Where an item fails, no more are submitted, those
    submitted before are yielded, and the error of the first failed item is raised: the same one on any pool.

    Args:
        function: computes one item; with a pool it can be pickled, and so can items and results.
        items: in order.
        crew: the pool that computes; None is this process, one by one.
        name: returns an item's name for errors.

    Raises:
        WorkersError: an item whose worker was lost twice, or a worker of another version.
    """

    def __init__(
        self,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        crew: WorkerPool | None = None,
        name: Callable[[Item], str] = str,
    ) -> None:
        self._function, self._items, self._crew, self._name = function, items, crew, name
        self._pickled = b"" if crew is None else pickle.dumps(function)
        self._waiting = deque(range(len(items)))
        self._flying: dict[Future[Any], int] = {}
        self._landed: deque[tuple[int, Result]] = deque()
        self._failed: dict[int, BaseException] = {}

    def __iter__(self) -> Iterator[tuple[int, Result]]:
        return self

    def __next__(self) -> tuple[int, Result]:
        if self._crew is None:
            if not self._waiting:
                raise StopIteration
            position = self._waiting.popleft()
            return position, self._function(self._items[position])
        while not self._landed and (self._flying or self._waiting):
            self._fill(self._crew)
            self._land(self._crew, None)
        if self._landed:
            return self._landed.popleft()
        if self._failed:
            raise self._failed[min(self._failed)]
        raise StopIteration

    def finish(self, seconds: float) -> Iterator[tuple[int, Result]]:
        """Submit nothing any more, and yield what ends within `seconds` of what was submitted."""
        self._waiting.clear()
        for future in [future for future in self._flying if future.cancel()]:
            del self._flying[future]
        end = time.monotonic() + seconds
        while self._crew is not None and (self._landed or (self._flying and time.monotonic() < end)):
            if not self._landed:
                self._land(self._crew, max(0.0, end - time.monotonic()))
            while self._landed:
                yield self._landed.popleft()

    def _fill(self, crew: WorkerPool) -> None:
        while self._waiting and len(self._flying) < _AHEAD * crew.count:
            self._give(crew, self._waiting.popleft())

    def _give(self, crew: WorkerPool, position: int) -> None:
        self._flying[crew.submit(_answer, __version__, self._pickled, self._items[position])] = position

    def _land(self, crew: WorkerPool, seconds: float | None) -> None:
        """Take in finished futures, after waiting for one at most `seconds`."""
        done, _ = wait(self._flying, _LOOKS_S if seconds is None else min(seconds, _LOOKS_S), FIRST_COMPLETED)
        if not done:
            crew.check()
        lost = [position for future in done if (position := self._take(crew, future)) is not None]
        if lost:
            self._redo(crew, lost)

    def _take(self, crew: WorkerPool, future: Future[Any]) -> int | None:
        """Take in one future that is done; return its position where its worker was lost."""
        position = self._flying.pop(future)
        error = CancelledError() if future.cancelled() else future.exception()
        if error is None:
            self._landed.append((position, future.result()))
        elif crew.is_lost(error):
            return position
        else:
            self._fail(position, crew.convert_error(error))
        return None

    def _fail(self, position: int, error: BaseException) -> None:
        self._failed[position] = error
        self._waiting.clear()

    def _redo(self, crew: WorkerPool, lost: list[int]) -> None:
        """Submit lost points once more, one at a time: a point that ends its worker again is then the culprit."""
        again = crew.renew()
        if again:
            # A pool that breaks loses the points of its other processes too, which did nothing wrong.
            done, _ = wait(self._flying)
            lost += [position for future in done if (position := self._take(crew, future)) is not None]
        for position in sorted(lost):
            if not again:
                self._fail(position, self._make_error(position, "was lost with every worker that it was given to"))
                continue
            self._give(crew, position)
            [future] = wait(self._flying).done
            if self._take(crew, future) is not None:
                crew.renew()
                self._fail(position, self._make_error(position, "was lost with its worker twice"))

    def _make_error(self, position: int, what: str) -> WorkersError:
        remedy = "leave it out, or see that a worker has the memory for it (fewer workers); the others are kept"
        return WorkersError(what, place=self._name(self._items[position]), remedy=remedy)


def sort_results(found: Iterator[tuple[int, Result]]) -> Iterator[Result]:
    """Yield the results by position, each as soon as all before it are there.

    >>> list(sort_results(iter([(1, "b"), (0, "a"), (2, "c")])))
    ['a', 'b', 'c']
    """
    early: dict[int, Result] = {}
    turn = 0
    for position, result in found:
        early[position] = result
        while turn in early:
            yield early.pop(turn)
            turn += 1


def _answer(version: str, pickled: bytes, item: Any) -> Any:
    """Return the pickled function's result for `item`, in a worker of the same version as the process that submits."""
    if version != __version__:
        what = f"has ddpsim {__version__}, this is ddpsim {version}"
        raise WorkersError(what, place=f"worker on {platform.node()}", remedy="install the same version on both")
    return _function(pickled)(item)


@lru_cache(maxsize=1)  # unpickled once a worker, not once a point
def _function(pickled: bytes) -> Callable[[Any], Any]:
    function: Callable[[Any], Any] = pickle.loads(pickled)
    return function
