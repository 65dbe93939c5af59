"""The nodes of a run in an order in which each comes after all that it waits for, as operations on columns of ends.

Streams, the host, the loader and the collectives of a lane keep the order that the run showed. What lies on one stream
between two waits is one operation: an end is the sum of what the nodes take, from the latest of where they could begin.

Start at `Dependencies.__init__`: each resource writes operations, with the rows they find and the rows they need, and a
topological sort puts them in order. The functions below it are the operations, one a kind of node.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from graphlib import TopologicalSorter

import numpy as np
from numpy.typing import NDArray

from ddpsim.common.options.input_stage import Loader
from ddpsim.simulation.graph import ORIGIN, NodeKind, RankGraph
from ddpsim.simulation.job_run import JobRun
from ddpsim.simulation.retiming.intervals import Columns

_BREAKS = (NodeKind.WAIT, NodeKind.COPY, NodeKind.LOAD, NodeKind.RESUME)


def numbers_of(members: Sequence[IntEnum]) -> NDArray[np.intp]:
    """Return the numbers of members below 256; numpy itself asks each member for its own, which takes eighty times as
    long."""
    return np.frombuffer(bytes(members), np.uint8).astype(np.intp)


def goes_apart(run: JobRun) -> bool:
    """Whether each rank of a run sends its messages without meeting the others."""
    return run.shared.apart is not None


def is_in_line(run: JobRun, lane: int) -> bool:
    """Whether messages of a lane wait out their latency behind one another."""
    if goes_apart(run):
        return run.shared.collectives.sends_in_line
    return run.shared.lanes[lane].line is not None


@dataclass(slots=True)
class PassTimes:
    """When everything happens in one pass over a run, by row of a node and column of an assumption.

    Attributes:
        end: of nodes.
        lasts: what a node takes, whatever it is slowed by; of a collective from when the last rank has come.
        begin: of collectives, when the rank has come.
        wire: of collectives, when the last has.
        late: of collectives, how long before they waited for multiprocessors.
        free: by lane of those that meet, when each of its streams is, the earlier first.
        due: by rank, when the next layer that sleeps is due.
        line: likewise, the latency of a message in line, and when the last has ended.
        loaders: by rank, one a column.
    """

    end: Columns
    lasts: Columns
    begin: Columns
    wire: Columns
    late: Columns
    free: list[list[Columns]]
    due: list[Columns]
    line: list[list[Columns]]
    loaders: list[list[Loader]]


Operation = Callable[[PassTimes], None]


class Dependencies:
    """Writes the operations of a run's first iterations, in an order in which they can be done.

    Args:
        run: that showed the order of each resource.
        iterations: how many.

    Attributes:
        graph: of these iterations.
        row: by node of it, its row of the columns; those of a stream are consecutive, in its order. Row 0 is the
            origin's, -1 of what is no part of the graph.
        count: of rows.
        kind, queued: by node, as `StepGraph` has them.
        lanes: the lanes of ranks that meet: of all that have messages on one, or of each that goes on by itself.
        operations: in order.
    """

    def __init__(self, run: JobRun, iterations: int) -> None:
        self._run, self.graph = run, run.graph.until(iterations)
        ranks = self.graph.ranks
        streams = [each for rank in ranks for each in (rank.host, rank.compute, rank.copies, *rank.lanes, rank.delays)]
        nodes = np.array([ORIGIN, *itertools.chain.from_iterable(streams)], dtype=np.intp)
        self.count, self.row = len(nodes), np.full(len(self.graph.kind), -1, dtype=np.intp)
        self.row[nodes] = np.arange(self.count)
        self.queued, self.kind = np.array(self.graph.queued, dtype=np.intp), numbers_of(self.graph.kind)
        numbers, count = range(len(ranks)), range(len(run.graph.ranks[0].lanes))
        if goes_apart(run):
            self.lanes = [([number], lane) for number in numbers for lane in count]
        else:
            self.lanes = [([n for n in numbers if ranks[n].lanes[lane]], lane) for lane in count]
        self._written: list[tuple[Operation, list[int]]] = [(lambda now: None, [])]
        # By row, the number of the operation that finds its end; that of the origin's is known.
        self._found_by = np.zeros(self.count, dtype=np.intp)
        for number, rank in enumerate(ranks):
            self._write_host(rank, number)
            self._write_compute(rank)
            self._write_copies(rank)
        for place in range(len(self.lanes)):
            self._write_meetings(place)
        operations, afters = zip(*self._written, strict=True)
        before = {number: set(self._found_by[after].tolist()) - {number} for number, after in enumerate(afters)}
        self.operations = [operations[number] for number in TopologicalSorter(before).static_order()]

    def _write(self, operation: Operation, rows: slice | list[int], after: list[int]) -> None:
        """Note which rows an operation finds the ends of, and those that have to be known before."""
        self._found_by[rows] = len(self._written)
        self._written.append((operation, after))

    def _after(self, node: int) -> list[int]:
        return [int(self.row[each]) for each in self.graph.after[node]]

    def _parts(
        self, nodes: Sequence[int], *, sleeps: bool = False, by: NDArray[np.intp] | None = None
    ) -> Iterator[range]:
        """Yield the places of a stream's nodes of which only the first waits for more than the one before it.

        Args:
            sleeps: whether a wait is a part by itself.
            by: numbers of which each part has one alone.
        """
        if not nodes:
            return
        kinds = self.kind[np.array(nodes)]
        begins = np.isin(kinds, _BREAKS)
        alone = begins & ((kinds != NodeKind.WAIT) | sleeps)
        begins[1:] |= alone[:-1]
        if by is not None:
            begins[1:] |= np.diff(by) != 0
        begins[0] = True
        for first, stop in itertools.pairwise([*np.flatnonzero(begins).tolist(), len(nodes)]):
            yield range(first, stop)

    def _write_host(self, rank: RankGraph, number: int) -> None:
        paced = self.kind[np.array(rank.host, dtype=np.intp)] == NodeKind.PACED
        for part in self._parts(rank.host, sleeps=bool(paced.any())):
            node, kind = rank.host[part.start], self.graph.kind[rank.host[part.start]]
            first, after = int(self.row[node]), self._after(node)
            before, rows = (first - 1 if part.start else 0), slice(first, first + len(part))
            if kind is NodeKind.LOAD:
                operation = _load(first, before, number)
            elif kind is NodeKind.RESUME:
                operation = _resume(first, before, after, number)
            elif (sleeps := paced[part.start : part.stop]).any():
                operation = _run_paced(rows, before, sleeps, number)
            else:
                operation = _run_in_turn(rows, [before, *after])
            self._write(operation, rows, [before, *after])

    def _write_compute(self, rank: RankGraph) -> None:
        nodes = np.array(rank.compute, dtype=np.intp)
        released = self.row[self.queued[nodes]]
        lags_s = np.array(self.graph.seconds)[nodes] * (self.kind[nodes] == NodeKind.NOT_BEFORE)
        for part in self._parts(rank.compute, by=self._found_by[released]):
            node = rank.compute[part.start]
            first, after, queued = int(self.row[node]), self._after(node), released[part.start : part.stop]
            before, rows = (first - 1 if part.start else 0), slice(first, first + len(part))
            if self.graph.kind[node] is NodeKind.COPY:
                operation = _run_in_turn(rows, [before, int(queued[0]), *after])
            else:
                operation = _run_queued(rows, [before, *after], queued, lags_s[part.start : part.stop])
            self._write(operation, rows, [before, int(queued[-1]), *after])

    def _write_copies(self, rank: RankGraph) -> None:
        """Write copies of batches, and what is on no resource."""
        for node, before in zip(rank.copies, [ORIGIN, *rank.copies], strict=False):
            after = [int(self.row[before]), int(self.row[self.queued[node]])]
            self._write_alone(node, after)
        for node in rank.delays:
            self._write_alone(node, self._after(node))

    def _write_alone(self, node: int, after: list[int]) -> None:
        """Write a node that begins when the last of others has ended."""
        rows = slice(row := int(self.row[node]), row + 1)
        self._write(_run_in_turn(rows, after), rows, after)

    def _write_meetings(self, place: int) -> None:
        ranks, lane = self.lanes[place]
        real, in_line = self._run.job.options.comm == "real", is_in_line(self._run, lane)
        before: list[int] = []
        for nodes in zip(*(self.graph.ranks[number].lanes[lane] for number in ranks), strict=True):
            rows, after = self.row[list(nodes)].tolist(), [self._after(node) for node in nodes]
            if not real and before:
                after = [[*each, row] for each, row in zip(after, before, strict=True)]
            arrivals = list(zip(rows, after, strict=True))
            operation = _meet(arrivals, place, in_line=in_line) if real else _meet_apart(arrivals)
            self._write(operation, rows, [*before, *itertools.chain.from_iterable(after)])
            before = rows


def _run_in_turn(rows: slice, begin: Sequence[int]) -> Operation:
    """One after the other, the first when the last of others has ended."""

    def done(now: PassTimes) -> None:
        ends = now.end[rows]
        np.cumsum(now.lasts[rows], axis=0, out=ends)
        ends += _find_last(now.end, begin)

    return done


def _run_queued(rows: slice, after: Sequence[int], released: NDArray[np.intp], lags_s: Columns) -> Operation:
    """One after the other, none before the host has queued it, the first when the last of others has ended."""
    places = np.flatnonzero(lags_s)
    seconds = lags_s[places, None]

    def done(now: PassTimes) -> None:
        lasts, begin = now.lasts[rows], now.end[released]
        if len(places):
            begin[places] += seconds
        # Node k ends at max over i <= k of (begin_i + what i to k take), where begin_i is when the host had queued i: a
        # running maximum of begin_i less all work before i, plus the work until k.
        worked = np.cumsum(lasts, axis=0)
        begin -= worked
        begin += lasts
        np.maximum(begin[0], _find_last(now.end, after), out=begin[0])
        np.maximum.accumulate(begin, axis=0, out=begin)
        np.add(begin, worked, out=now.end[rows])

    return done


def _run_paced(rows: slice, before: int, paced: NDArray[np.bool_], number: int) -> Operation:
    """One after the other, layers that sleep no sooner than they are due."""
    sleeps = paced[:, None]

    def done(now: PassTimes) -> None:
        # The same running maximum: what works takes its time, and a layer that sleeps ends when it is due, or at once
        # where that has passed.
        lasts = now.lasts[rows]
        slept = np.cumsum(np.where(sleeps, lasts, 0.0), axis=0)
        worked = np.where(sleeps, 0.0, lasts)
        done_by = np.cumsum(worked, axis=0)
        begin = np.where(sleeps, now.due[number] + slept - done_by, -np.inf)
        np.maximum(begin[0], now.end[before], out=begin[0])
        np.maximum.accumulate(begin, axis=0, out=begin)
        now.end[rows] = begin + done_by
        now.due[number] = now.due[number] + slept[-1]

    return done


def _resume(row: int, before: int, after: Sequence[int], number: int) -> Operation:
    def done(now: PassTimes) -> None:
        end = now.end[row] = now.end[before]
        now.due[number] = now.due[number] + end - now.end[after[0]] if after else end

    return done


def _load(row: int, before: int, number: int) -> Operation:
    def done(now: PassTimes) -> None:
        came_s = now.end[before].tolist()
        now.end[row] = [loader.take(each_s) for loader, each_s in zip(now.loaders[number], came_s, strict=True)]

    return done


Arrival = tuple[int, list[int]]
"""A collective's row on one rank, and what it comes after there."""


def _meet(arrivals: Sequence[Arrival], place: int, *, in_line: bool) -> Operation:
    """A collective for which ranks meet, on the first stream of its lane that is free."""

    def done(now: PassTimes) -> None:
        # `free` is when each of the lane's one or two streams is, the earlier first: as `GraphRun` has it, the next
        # collective goes to that one.
        free, line, wire = now.free[place], now.line[place], None
        for row, after in arrivals:
            begin = now.begin[row] = np.maximum(_find_last(now.end, after), free[0]) + now.late[row]
            wire = begin if wire is None else np.maximum(wire, begin)
        assert wire is not None
        sent = np.maximum(wire + line[0], line[1]) if in_line else wire
        end = sent + now.lasts[arrivals[0][0]]
        if in_line:
            line[1] = end
        for row, _ in arrivals:
            now.wire[row], now.end[row] = wire, end
        if len(free) == 1:
            free[0] = end
        else:
            free[:] = [np.minimum(free[1], end), np.maximum(free[1], end)]

    return done


def _meet_apart(arrivals: Sequence[Arrival]) -> Operation:
    """Collectives that take no time, each rank by itself."""

    def done(now: PassTimes) -> None:
        for row, after in arrivals:
            now.begin[row] = now.wire[row] = now.end[row] = _find_last(now.end, after)

    return done


def _find_last(end: Columns, rows: Sequence[int]) -> Columns:
    latest: Columns = end[rows[0]]
    for row in rows[1:]:
        latest = np.maximum(latest, end[row])
    return latest


def narrow(owner: object, names: Sequence[str], columns: NDArray[np.intp]) -> None:
    """Let attributes have some of their columns only."""
    for name in names:
        setattr(owner, name, getattr(owner, name)[..., columns])


@dataclass(slots=True, eq=False)
class RetimedRun:
    """A run, and what its nodes take under several assumptions.

    Attributes:
        order: of the part of its graph that is retimed.
        end_s: when the node of each row ended in the run.
        lasts: what it takes now: (rows, assumptions).
        late: how long a collective waits for multiprocessors before it begins.
    """

    run: JobRun
    order: Dependencies
    end_s: Columns
    lasts: Columns
    late: Columns

    @property
    def columns(self) -> int:
        """How many assumptions there are."""
        return len(self.lasts[0])

    def leave_out_but(self, columns: NDArray[np.intp]) -> None:
        """Go on with some columns only."""
        narrow(self, ("lasts", "late"), columns)
