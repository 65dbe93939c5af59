"""Ranks end with the call that started them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from types import FrameType

import pytest

pytest.importorskip("torch")

from tests.ddpexec.groups import ranks


def hang(rank: int) -> None:
    time.sleep(60)


def test_all_ranks_that_hang_have_one_timeout_together() -> None:
    before, begin_s = multiprocessing.active_children(), time.monotonic()
    with pytest.raises(TimeoutError, match=r"ranks \[0, 1, 2\] were still running after 3 s"):
        ranks.outcomes(3, hang, timeout_s=3)
    assert time.monotonic() - begin_s < 3 * 3
    assert set(multiprocessing.active_children()) <= set(before)


class InterruptionError(Exception):
    """What a test's own timeout, or Ctrl-C, raises in it."""


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Raise `InterruptionError` in this process at SIGUSR1."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise InterruptionError

    former = signal.signal(signal.SIGUSR1, interrupt)
    yield
    signal.signal(signal.SIGUSR1, former)


def interrupt_the_test(rank: int) -> None:
    if rank == 0:
        os.kill(os.getppid(), signal.SIGUSR1)
    time.sleep(60)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_test_leaves_no_rank() -> None:
    before = multiprocessing.active_children()
    with pytest.raises(InterruptionError):
        ranks.outcomes(2, interrupt_the_test)
    assert set(multiprocessing.active_children()) <= set(before)
