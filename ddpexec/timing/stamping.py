"""What taking moments costs a step: each kind of stamp timed alone, times how many of them a step takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from ddpexec.timing.clock import Clock
from ddpexec.timing.observe import Note, Observer

ROUNDS, REPEATS = 200, 15
"""Calls that are timed as one, and how often, for a median; chosen by hand."""
AROUND = 8
"""Pairs of moments of the phases of one step: forward, its module, backward and its end, buffers, optimizer, ..."""


def stamping_s(clock: Clock, note: Note) -> float:
    """Return the processor seconds, of all threads, that the stamps of the step behind `note` cost."""
    return gradient_s(clock) * (len(note.hooks) + AROUND) + bucket_s(clock) * len(note.buckets)


def gradient_s(clock: Clock) -> float:
    """Return the processor seconds of one gradient's pair of moments."""
    observer = Observer(clock)

    def stamp(index: int) -> None:
        begin = observer.now()
        observer.hooks[index] = begin, observer.now()

    return _measure_more(stamp, lambda _: None)


def bucket_s(clock: Clock) -> float:
    """Return the processor seconds of one bucket's moments: its launch, its end, waiting for it, writing it back.

    The end is stamped by a callback on the backend's thread, which has to become one of Python's for it; so an
    allreduce is watched, in a group of this process alone, and the cost of the same unwatched is taken away.
    """
    group: Any = dist.ProcessGroupGloo(dist.HashStore(), 0, 1, timedelta(seconds=60))  # type: ignore[attr-defined]
    tensor, observer = torch.zeros(1), Observer(clock)

    def stamped(index: int) -> None:
        if index == 0:
            observer.begin(0, synced=True)
        begin, work = observer.now(), group.allreduce([tensor])
        observer.note_launch(index, (index,), tensor.nbytes, begin, work)
        begin = observer.now()
        work.wait()
        observer.note_bucket_wait(index, begin)
        observer.note_written(index)

    def plain(_: int) -> None:
        group.allreduce([tensor]).wait()

    return _measure_more(stamped, plain)


def _measure_more(call: Callable[[int], None], than: Callable[[int], None]) -> float:
    """Return the processor seconds by which one `call` costs more `than` another, by turns, the median over rounds."""
    return max(0.0, median(_seconds(call) - _seconds(than) for _ in range(REPEATS)) / ROUNDS)


def _seconds(call: Callable[[int], None]) -> float:
    begin = time.process_time()
    for index in range(ROUNDS):
        call(index)
    return time.process_time() - begin
