"""MPI calls on threads: one process group's collectives one after another, each with a work as torch has them.

Start with `MpiCalls`. Above it stands how tensors are MPI's buffers and torch's reductions MPI's operations.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache, partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ddpexec.errors import OptionError
from ddpexec.groups.mpi_world import abandon, mpi
from ddpexec.groups.timeouts import is_done_within

_NAMES = {
    torch.float32: "FLOAT",
    torch.float64: "DOUBLE",
    torch.int8: "INT8_T",
    torch.uint8: "UINT8_T",
    torch.int16: "INT16_T",
    torch.int32: "INT32_T",
    torch.int64: "INT64_T",
    torch.bool: "UINT8_T",
    torch.float16: "UINT16_T",
    torch.bfloat16: "UINT16_T",
}
"""MPI's type of as many bytes; of floats that MPI 3 has not, and of bool, one that it moves, and our functions add."""

_OPERATIONS = {"SUM": "SUM", "AVG": "SUM", "PRODUCT": "PROD", "MIN": "MIN", "MAX": "MAX"}
_BITS = {"BAND": "BAND", "BOR": "BOR", "BXOR": "BXOR"}
_OURS: dict[str, Callable[..., Tensor]] = {
    "SUM": torch.add,
    "PROD": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
}


def check_tensor(tensor: Tensor) -> Tensor:
    """Return `tensor` where MPI can send it.

    Raises:
        OptionError: it is sparse, lies on another device, or is of a type that MPI has not.
    """
    if tensor.is_sparse or tensor.device.type != "cpu":
        where = "sparse" if tensor.is_sparse else f"on {tensor.device}"
        raise OptionError(f"a tensor {where}: MPI is used for dense ones on the CPU", remedy="use gloo or nccl")
    if tensor.dtype not in _NAMES:
        raise OptionError(f"MPI has no type for {tensor.dtype}", remedy="use another type, or gloo")
    return tensor


def buffer_of(tensor: Tensor) -> list[Any]:
    """Return the memory of a contiguous tensor and MPI's type; how many elements go to a rank, mpi4py finds out."""
    module = mpi()
    memory = module.buffer.fromaddress(tensor.data_ptr(), tensor.nbytes)
    return [memory, getattr(module, _NAMES[tensor.dtype])]


@contextmanager
def contiguous(tensor: Tensor) -> Iterator[Tensor]:
    """Give the elements of `tensor` in one piece of memory; what is written there is in the tensor afterwards."""
    if tensor.is_contiguous():
        yield tensor
        return
    piece = tensor.contiguous()
    yield piece
    tensor.copy_(piece)


def reduction(operation: Any, dtype: torch.dtype) -> Any:
    """Return MPI's operation for torch's, an average as its sum.

    Raises:
        OptionError: MPI has none, or none of this type.
    """
    names = (*_OPERATIONS, *_BITS)
    name = next((name for name in names if operation == getattr(dist.ReduceOp, name)), "such reduction")
    whole = not dtype.is_floating_point
    theirs = _OPERATIONS.get(name) or (_BITS.get(name) if whole else None)
    if theirs is None or (name == "AVG" and whole):
        raise OptionError(f"MPI has no {name} of {dtype}", remedy="use SUM, PRODUCT, MIN or MAX")
    module = mpi()
    if dtype is torch.bool:
        logical = {"SUM": "MAX", "PROD": "MIN"}.get(theirs, theirs)
        return getattr(module, logical)
    if dtype in (torch.float16, torch.bfloat16):
        return _make_operation(theirs, dtype)
    return getattr(module, theirs)


def is_average(operation: Any) -> bool:
    """Whether torch's operation is the average."""
    return bool(operation == dist.ReduceOp.AVG)


@cache
def _make_operation(name: str, dtype: torch.dtype) -> Any:
    """Return an operation of MPI that is a function of torch: MPI 3 has no 16-bit floats."""
    function = _OURS[name]

    def combine(incoming: Any, combined: Any, _: Any) -> None:
        # MPI hands over raw memory of 16-bit elements as UINT16; torch reads it as the float type that it is.
        mine = torch.frombuffer(combined, dtype=dtype)
        function(torch.frombuffer(incoming, dtype=dtype), mine, out=mine)

    return mpi().Op.Create(combine, commute=True)


_LOOK_S = 0.2
"""Between two looks at whether a call has timed out; chosen by hand: short beside any timeout."""
_ASK_S = 50e-6, 1e-3
"""Between two questions whether a message has come, at first and at most; chosen by hand: half a small message."""


class MpiError(RuntimeError):
    """A call of MPI failed or timed out."""


class MpiWork(dist._Work):  # type: ignore[name-defined,misc]
    """A call of MPI in flight.

    Args:
        what: named in errors.
        value: of the future, once the call has returned.
    """

    def __init__(self, what: str, value: Any) -> None:
        super().__init__()
        self.what, self._value = what, value
        self.begun_s = 0.0
        self._future: torch.futures.Future[Any] = torch.futures.Future()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the call has returned, or has failed: that is raised here."""
        if timeout and not is_done_within(self._future, timeout):
            raise MpiError(f"MPI: {self.what} timed out after {timeout.total_seconds():g} s")
        self._future.wait()
        return True

    def is_completed(self) -> bool:
        """Return whether it has returned."""
        return bool(self._future.done())

    def get_future(self) -> torch.futures.Future[Any]:
        """Return the future of what was given as value."""
        return self._future

    def result(self) -> Any:
        """Wait; return the tensors of the call."""
        return self._future.wait()

    def succeed(self) -> None:
        """Note that the call has returned."""
        self._future.set_result(self._value)

    def fail(self, error: Exception) -> None:
        """Note that it has failed."""
        self._future.set_exception(error)


class _Finishers:
    """Threads that note the ends of calls, and carry out what was to follow them.

    What follows may make another call and wait for it, as torch's PowerSGD does: then another thread must note that
    one's end, as many as wait at once.
    """

    def __init__(self) -> None:
        self._todo: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._count = 0

    def do(self, call: Callable[[], None]) -> None:
        """Make `call` on one of the threads."""
        self._todo.put(call)
        # No thread is idle: all of them may be waiting in what follows a call, for an end that only another thread can
        # note.
        if not self._idle.acquire(blocking=False):
            self._count += 1
            threading.Thread(target=self._work, name="ddpexec MPI's ends", daemon=True).start()

    def close(self) -> None:
        """End the threads, each when it is done."""
        for _ in range(self._count):
            self._todo.put(None)

    def _work(self) -> None:
        while (call := self._todo.get()) is not None:
            call()
            self._idle.release()


class MpiCalls:
    """The calls of one process group: collectives one after another on a thread, sends and receives as they come.

    Blocking collectives on a thread are what torch's own MPI group makes (`ProcessGroupMPI.cpp`, torch 2.13), and what
    Open MPI picks its algorithms for; its non-blocking ones are of another component (`coll/libnbc`).

    Args:
        timeout: how long a call may take before it and all after it fail.
    """

    def __init__(self, timeout: timedelta) -> None:
        self.timeout_s = timeout.total_seconds()
        self._calls: queue.SimpleQueue[tuple[MpiWork, Callable[[], None]] | None] = queue.SimpleQueue()
        self._open: set[MpiWork] = set()
        self._lock = threading.Lock()
        self._finishers = _Finishers()
        self._failure: Exception | None = None
        self._requests: list[tuple[MpiWork, Any]] = []
        self._has_requests = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="ddpexec MPI", daemon=True)
        for thread in (
            self._thread,
            threading.Thread(target=self._watch, name="ddpexec MPI's timeout", daemon=True),
            threading.Thread(target=self._ask, name="ddpexec MPI's messages", daemon=True),
        ):
            thread.start()

    def carry_out(self, what: str, call: Callable[[], None], value: Any) -> MpiWork:
        """Make `call` on the thread, after those before it."""
        work = self._open_work(what, value)
        self._calls.put((work, call))
        return work

    def begin(self, what: str, start: Callable[[], Any], value: Any) -> MpiWork:
        """Start a message at once; `start` returns MPI's request."""
        work = self._open_work(what, value)
        work.begun_s = time.monotonic()
        request = start()
        with self._lock:
            self._requests.append((work, request))
        self._has_requests.set()
        return work

    def close(self) -> None:
        """Wait for calls under way, and end the threads."""
        self._calls.put(None)
        self._thread.join(None if self._failure is None else 0.0)
        self._closed.set()
        self._has_requests.set()
        self._finishers.close()

    def abort(self) -> None:
        """Let all calls fail, those under way too; whoever waits for them hears at once."""
        self._fail_all(MpiError("MPI: given up, as other ranks are gone or this one ends"))

    def _open_work(self, what: str, value: Any) -> MpiWork:
        # After one failure ranks no longer agree on which call is the next, so none is begun.
        if self._failure is not None:
            raise self._failure
        work = MpiWork(what, value)
        with self._lock:
            self._open.add(work)
        return work

    def _end_work(self, work: MpiWork, failure: Exception | None = None) -> None:
        with self._lock:
            # Three threads may end a work: the one that called, the one that asks for messages, the one that watches
            # the time. The first counts.
            if work not in self._open:
                return
            self._open.discard(work)
        self._finishers.do(work.succeed if failure is None else partial(work.fail, failure))

    def _work(self) -> None:
        while (job := self._calls.get()) is not None:
            work, call = job
            try:
                if self._failure is not None:
                    raise self._failure
                work.begun_s = time.monotonic()
                call()
            except Exception as error:
                failure = error if isinstance(error, MpiError) else MpiError(f"MPI: {work.what} failed: {error}")
                self._break(failure)
                self._end_work(work, failure)
            else:
                self._end_work(work)

    def _ask(self) -> None:
        pause_s = _ASK_S[0]
        while not self._closed.is_set():
            self._has_requests.wait()
            # The list is taken under the lock and tested outside of it: `Test` drives MPI's progress and may take long,
            # and a training thread that begins a message must not wait for that.
            with self._lock:
                requests, self._requests = self._requests, []
                if not requests:
                    self._has_requests.clear()
            left = []
            for work, request in requests:
                try:
                    arrived = request.Test()
                except Exception as error:
                    self._end_work(work, MpiError(f"MPI: {work.what} failed: {error}"))
                    continue
                if arrived:
                    self._end_work(work)
                else:
                    left.append((work, request))
            pause_s = _ASK_S[0] if len(left) < len(requests) else min(2 * pause_s, _ASK_S[1])
            with self._lock:
                self._requests += left
            if left:
                time.sleep(pause_s)

    def _watch(self) -> None:
        while not self._closed.wait(_LOOK_S):
            with self._lock:
                begun = [work for work in self._open if work.begun_s]
            # A call of MPI cannot be broken off. Its work fails here, whoever waits is told, and its thread is left
            # where it hangs.
            late = [work for work in begun if time.monotonic() - work.begun_s > self.timeout_s]
            if late:
                failure = MpiError(f"MPI: {late[0].what} timed out after {self.timeout_s:g} s")
                self._fail_all(failure)

    def _fail_all(self, failure: Exception) -> None:
        self._break(failure)
        with self._lock:
            ended = list(self._open)
        for work in ended:
            self._end_work(work, failure)

    def _break(self, failure: Exception) -> None:
        with self._lock:
            first, self._failure = self._failure is None, self._failure or failure
        if first:
            abandon()
