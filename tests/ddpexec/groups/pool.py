"""Standing ranks: processes that run one test's function after another, where a fork for each would cost more.

A pool of two serves functions of one or two ranks, a pool of four those of three or four. The processes stay; the
process group is formed anew for each function, out of a store that the pool's first rank keeps, so that no test
inherits another's groups, collectives or notes. What a function must not leave behind is in `tests.leftovers`, and
threads.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import multiprocessing
import os
import pickle
import random
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any
from unittest import mock

import cloudpickle
import torch
import torch.distributed as dist

from tests import forked, leftovers

ABORTS = (-signal.SIGABRT, -signal.SIGSEGV)
"""How a process ends that torch's native code aborts."""
GROUP_TIMEOUT_S = 45.0
"""Longer than a busy machine keeps any rank from running; a rank that hangs is told of by `timeout_s` soon after."""
ENDING_S = 3.0
"""How long threads that are about to end may take: notes are read for a while after a failure."""
AFTER_A_FAILURE_S = 3.0
"""How long the other ranks have when one has failed: they wait for it in a collective, perhaps."""
SIZES = (2, 4)
MOST_THREADS = 16
"""Of a rank, before its pool is made anew. A group's own thread looks for messages a hundred times a second until the
next task comes and destroys the group; and beyond that while something, an error's traceback for one, holds a wrapper
of it."""
PR_SET_PDEATHSIG = 1


class RankAbortedError(Exception):
    """Torch's native code has aborted a rank: nothing that a test can have done in Python."""


@dataclass(frozen=True, slots=True)
class Task:
    """What every rank of a pool is told: the function it calls with its rank first, and how to form the group."""

    number: int
    port: int
    world_size: int
    function: Callable[..., Any]
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a rank returns: the function's value, or its error with its traceback; and what it has left behind.

    `threads` counts those of torch's native code too.
    """

    value: Any = None
    error: str | None = None
    left: tuple[str, ...] = ()
    threads: int = 0


def run(world_size: int, function: Callable[..., Any], *arguments: Any, timeout_s: float) -> list[Any]:
    """Call `function(rank, *arguments)` on standing ranks and return the results by rank.

    Raises:
        AssertionError: a rank's function failed, or left something behind.
        RankAbortedError: torch's native code has aborted a rank; the next call has a new pool.
        TimeoutError: ranks were still running after `timeout_s` seconds.
    """
    size = next(size for size in SIZES if size >= world_size)
    pool = _pool(size)
    try:
        answers = pool.answers(world_size, function, arguments, timeout_s)
    except BaseException:
        close(size)
        raise
    if max(answer.threads for answer in answers) > MOST_THREADS:
        close(size)
    if failed := [f"rank {rank}:\n{answer.error}" for rank, answer in enumerate(answers) if answer.error]:
        raise AssertionError("\n".join(failed))
    left = [f"rank {rank} leaves behind {', '.join(answer.left)}" for rank, answer in enumerate(answers) if answer.left]
    if left:
        raise AssertionError("; ".join(left))
    return [answer.value for answer in answers]


def aborted(rank: int, code: int) -> RankAbortedError:
    """Return the error of a rank that ended with that exit code."""
    return RankAbortedError(f"torch's native code has aborted rank {rank} ({signal.Signals(-code).name})")


def close(*sizes: int) -> None:
    """End the pools of those sizes, all where none is given."""
    for size in sizes or SIZES:
        if pool := _POOLS.pop((os.getpid(), size), None):
            pool.close()


def _pool(size: int) -> Pool:
    key = (os.getpid(), size)
    if key not in _POOLS:
        _POOLS[key] = Pool(size)
    return _POOLS[key]


class Pool:
    """Forked processes of this one, which end with it."""

    def __init__(self, size: int) -> None:
        forked.warm_up()
        context: Any = multiprocessing.get_context("fork")
        self._tasks = 0
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, theirs), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        self._port = self._pipes[0].recv()

    def answers(
        self, world_size: int, function: Callable[..., Any], arguments: tuple[Any, ...], timeout_s: float
    ) -> list[Answer]:
        """Return the answer of each rank, by rank."""
        self._tasks += 1
        task = cloudpickle.dumps(Task(self._tasks, self._port, world_size, function, arguments))
        for pipe in self._pipes[:world_size]:
            pipe.send_bytes(task)
        found: dict[int, Answer] = {}
        until_s = time.monotonic() + timeout_s
        while len(found) < world_size:
            waiting = {self._pipes[rank]: rank for rank in range(world_size) if rank not in found}
            ready = wait(list(waiting), max(0.0, until_s - time.monotonic()))
            if not ready:
                return self._failed(found, world_size, timeout_s)
            for pipe in ready:
                rank = waiting[pipe]  # type: ignore[index]
                try:
                    found[rank] = pickle.loads(pipe.recv_bytes())  # type: ignore[union-attr]
                except EOFError:
                    self._raise_ended(rank)
                if found[rank].error:
                    until_s = min(until_s, time.monotonic() + AFTER_A_FAILURE_S)
        return [found[rank] for rank in range(world_size)]

    def close(self) -> None:
        """End every rank."""
        for process in self._processes:
            process.kill()
            process.join()
        for pipe in self._pipes:
            pipe.close()

    def _failed(self, found: dict[int, Answer], world_size: int, timeout_s: float) -> list[Answer]:
        hung = [rank for rank in range(world_size) if rank not in found]
        if failed := next((answer.error for answer in found.values() if answer.error), None):
            raise AssertionError(f"{failed}\nranks {hung} waited for it")
        raise TimeoutError(f"ranks {hung} were still running after {timeout_s} s")

    def _raise_ended(self, rank: int) -> None:
        self._processes[rank].join(AFTER_A_FAILURE_S)
        code = self._processes[rank].exitcode
        if code in ABORTS:
            raise aborted(rank, code)
        raise AssertionError(f"rank {rank} has ended with exit code {code}")


_POOLS: dict[tuple[int, int], Pool] = {}
"""By the process that started it, for a fork of a test's process has no ranks, and by size."""


def _serve(rank: int, pipe: Connection) -> None:
    """Answer tasks until the pipe is closed."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    gc.freeze()  # what the forking process holds, hundreds of thousands of objects late in a long run, is not looked at
    sys.stdout, sys.stderr = os.fdopen(os.dup(1), "w"), os.fdopen(os.dup(2), "w")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    store: Any = None
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        pipe.send(store.port)
    while True:
        try:
            received = pipe.recv_bytes()
        except EOFError:
            os._exit(0)
        answer = _answer(rank, received, lambda port: store or _connected(port))
        try:
            pickled = pickle.dumps(answer)
        except Exception as error:
            pickled = pickle.dumps(Answer(error=f"what it returns cannot be pickled: {error}", left=answer.left))
        pipe.send_bytes(pickled)


@functools.cache
def _connected(port: int) -> dist.TCPStore:
    return dist.TCPStore("127.0.0.1", port, is_master=False)


def _answer(rank: int, received: bytes, store_at: Callable[[int], dist.Store]) -> Answer:
    """Do a task in a group of its own, and put everything back as it was.

    The group stays until the next task: by then every rank has answered, and none can miss another.
    """
    if dist.is_initialized():
        dist.destroy_process_group()
    random.seed(0)
    torch.manual_seed(0)
    before: dict[str, Any] = {}
    threads = set[threading.Thread]()
    value, error = None, None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what torch deprecates, of nothing that a test asks for
        try:
            task: Task = pickle.loads(received)
            dist.init_process_group(
                "gloo",
                store=dist.PrefixStore(str(task.number), store_at(task.port)),
                rank=rank,
                world_size=task.world_size,
                timeout=timedelta(seconds=GROUP_TIMEOUT_S),
            )
            dist.barrier()  # ranks connect to one another when they first talk
            before, threads = leftovers.state(), set(threading.enumerate())
            value = task.function(rank, *task.arguments)
        except BaseException as exception:
            error = f"{type(exception).__name__}: {exception}\n{traceback.format_exc()}"
    mock.patch.stopall()
    gc.collect()
    left = (*leftovers.found(before), *_threads_beside(threads)) if before else ()
    return Answer(value, error, left, len(os.listdir("/proc/self/task")))


def _threads_beside(before: set[threading.Thread]) -> list[str]:
    """Return the threads that have begun since and do not end."""
    until_s = time.monotonic() + ENDING_S
    while (more := set(threading.enumerate()) - before) and time.monotonic() < until_s:
        gc.collect()
        time.sleep(0.01)
    return [f"the thread {thread.name}" for thread in more]
