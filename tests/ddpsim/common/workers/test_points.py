"""Points: who computes them does not change what comes of them, and a lost worker loses none."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ddpsim.common.errors import InputError
from ddpsim.common.workers.crew import BorrowedPool, WorkerPool, WorkersError
from ddpsim.common.workers.points import Points, sort_results
from ddpsim.common.workers.requests import Workers


def squared(number: int) -> int:
    # Later points are done first.
    time.sleep(0.01 * (number % 3 == 0))
    return number * number


def failing(number: int) -> int:
    if number in (3, 5):
        time.sleep(0.05 * (number == 3))
        raise InputError("no such point", place=f"point={number}", remedy="leave it out")
    return number


def ending(folder: Path, deadly: int, times: int, number: int) -> int:
    """End the process at the point `deadly`, so many times."""
    died = folder / f"died-{os.getpid()}"
    if number == deadly and len(list(folder.iterdir())) < times:
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.01)
    return number * number


def test_somebodys_own_executor_computes_and_stays_open() -> None:
    with ThreadPoolExecutor(3) as executor:
        crew: WorkerPool = BorrowedPool(executor)
        assert sorted(Points(squared, [4, 5], crew)) == [(0, 16), (1, 25)]
        crew.dismiss()
        assert executor.submit(squared, 2).result() == 4


@pytest.mark.parametrize("count", [1, 4])
def test_the_first_error_in_order_is_raised_and_all_before_it_are_done(count: int) -> None:
    found = dict[int, int]()
    with Workers(workers=count).crew(8) as crew, pytest.raises(InputError, match="point=3: no such point"):
        found.update(Points(failing, range(8), crew))
    assert {0, 1, 2} <= set(found)


def test_a_point_whose_worker_dies_once_is_done_again(tmp_path: Path) -> None:
    with Workers(workers=2).crew(12) as crew:
        found = list(sort_results(Points(partial(ending, tmp_path, 5, 1), range(12), crew)))
    assert found == [number * number for number in range(12)]
    assert len(list(tmp_path.iterdir())) == 1


def test_what_is_under_way_is_finished_within_the_grace_and_nothing_more() -> None:
    with Workers(workers=2).crew(50) as crew:
        points = Points(squared, range(50), crew)
        first = next(points)
        rest = list(points.finish(5.0))
        assert [first, *rest] != []
        assert len(rest) < 10
        assert list(points) == []


class OfAnotherVersion(BorrowedPool):
    """Workers whose asker says that it is of another version."""

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        return super().submit(function, "9.9", *arguments[1:])


def test_a_worker_of_another_version_is_refused_by_name() -> None:
    with (
        ThreadPoolExecutor(1) as executor,
        pytest.raises(WorkersError, match=r"worker on .*: has ddpsim .*, this is ddpsim 9\.9"),
    ):
        list(Points(squared, [2], OfAnotherVersion(executor)))


def test_a_cluster_without_its_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(WorkersError, match=r"pip install 'ddpsim\[cluster\]'"), Workers(scheduler="x:1").crew(4):
        pass
