"""Ranks do what a test asks and end with it; what they leave behind fails that test by its name."""

from __future__ import annotations

import inspect
import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.ddpexec.groups import pool, ranks


def process_of(rank: int) -> int:
    return os.getpid()


def total(rank: int) -> float:
    numbers = torch.ones(1) * (rank + 1)
    dist.all_reduce(numbers)
    return float(numbers)


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_ranks_stand_and_form_a_group_of_any_size(world: int) -> None:
    assert ranks.run(world, process_of) == ranks.run(world, process_of)
    assert ranks.run(world, total) == [world * (world + 1) / 2] * world


@ranks.on("world")
def at_least(rank: int, least: int) -> None:
    assert dist.get_world_size() == 3
    assert rank >= least


def test_a_test_of_ranks_fails_where_an_assertion_of_one_does() -> None:
    assert list(inspect.signature(at_least).parameters) == ["least", "world"]
    at_least(world=3, least=0)
    with pytest.raises(AssertionError, match="rank 0:\nAssertionError"):
        at_least(world=3, least=1)


def test_every_function_finds_the_same_seeds() -> None:
    def drawn(rank: int) -> tuple[float, float]:
        return random.random(), float(torch.rand(()))

    assert len({*ranks.run(2, drawn), *ranks.run(2, drawn)}) == 1


def leave_a_variable() -> None:
    os.environ["LEFT_BEHIND"] = "1"


def leave_a_hook() -> None:
    torch.nn.modules.module.register_module_forward_hook(lambda *_: None)


def leave_a_thread() -> None:
    threading.Thread(target=time.sleep, args=(30,), name="idler", daemon=True).start()


def leave_without_gradients() -> None:
    torch.set_grad_enabled(False)


@pytest.mark.parametrize(
    ("leave", "named"),
    [
        (leave_a_variable, "environment variables: LEFT_BEHIND"),
        (leave_a_hook, "a hook on every module"),
        (leave_a_thread, "the thread idler"),
        (leave_without_gradients, "another gradient mode"),
        (dist.destroy_process_group, "another process group, or none"),
    ],
)
def test_what_is_left_behind_is_named_and_put_back(leave: Callable[[], Any], named: str) -> None:
    with pytest.raises(AssertionError, match=f"rank 0 leaves behind {named}"):
        ranks.run(1, lambda rank: leave())
    ranks.run(1, process_of)


def test_a_rank_that_fails_is_named_and_does_not_keep_the_others() -> None:
    def fails(rank: int) -> None:
        if rank == 1:
            raise ValueError("of its own making")
        dist.barrier()

    with pytest.raises(AssertionError, match="ValueError: of its own making"):
        ranks.run(2, fails)
    assert ranks.run(2, total) == [3, 3]


@pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGSEGV])
@pytest.mark.parametrize("start", [ranks.run, ranks.run_own])
def test_an_abort_of_native_code_is_an_error_of_its_own(start: Callable[..., Any], number: signal.Signals) -> None:
    def aborts(rank: int) -> None:
        if rank == 1:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        time.sleep(0.5)

    with pytest.raises(pool.RankAbortedError, match=rf"has aborted rank 1 \({number.name}\)"):
        start(2, aborts)
    assert ranks.run(2, total) == [3, 3]


def test_ranks_that_hang_are_named() -> None:
    with pytest.raises(TimeoutError, match=r"ranks \[(0, )?1\] were still running after 0.5 s"):
        ranks.run(2, lambda rank: time.sleep(rank * 30), timeout_s=0.5)
    assert ranks.run(2, total) == [3, 3]


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
