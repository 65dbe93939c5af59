"""The nodes of a run in an order in which each comes after all that it waits for, as operations on columns of ends.

Streams, the host, the loader and the collectives of a lane keep the order that the run showed. What lies on one stream
between two waits is one operation: an end is the sum of what the nodes take, from the latest of where they could begin.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ddpsim.options.input_stage import Loader
from ddpsim.simulation.graph import ORIGIN, NodeKind, RankGraph, StepGraph
from ddpsim.simulation.job_run import Columns, JobRun, goes_apart, is_in_line, numbers_of

_BREAKS = (NodeKind.WAIT, NodeKind.COPY, NodeKind.LOAD, NodeKind.RESUME)


@dataclass(slots=True)
class Moments:
    """The moments of one pass over a run, by row of a node and column of an assumption.

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


Operation = Callable[[Moments], None]


@dataclass(slots=True)
class Rows:
    """Which row of the columns a node has: those of a stream are consecutive, in its order.

    Attributes:
        of: by node; -1 of what is no part of the graph.
        count: of rows; row 0 is the origin's.
    """

    of: list[int]
    count: int = 1

    @classmethod
    def in_graph(cls, graph: StepGraph) -> Rows:
        """Return the rows of all ranks."""
        rows = cls([-1] * len(graph.kind))
        rows.of[ORIGIN] = 0
        for rank in graph.ranks:
            for nodes in (rank.host, rank.compute, rank.copies, *rank.lanes, rank.delays):
                for node in nodes:
                    rows.of[node] = rows.count
                    rows.count += 1
        return rows


@dataclass(slots=True, eq=False)
class _Cursor:
    """Says how far one rank's resources have been put in order.

    Attributes:
        queued: by node of the computing stream, the place on the host of what it is queued by.
        released: likewise, the row of that, and how long after its end the node begins at the earliest.
        host_stops, compute_stops: places at which more than the node before is waited for.
    """

    rank: RankGraph
    delays: list[int]
    queued: list[int]
    released: tuple[NDArray[np.intp], Columns]
    host_stops: list[int]
    compute_stops: list[int]
    at_host: int = 0
    at_compute: int = 0
    at_copies: int = 0

    @classmethod
    def of(cls, rank: RankGraph, graph: StepGraph, row: Sequence[int]) -> _Cursor:
        """Return the cursor at a rank's first nodes, of which each has its row."""
        kinds, place = graph.kind, {node: at for at, node in enumerate(rank.host)}
        hosts = [graph.queued[node] for node in rank.compute]
        queued = [place.get(node, -1) for node in hosts]
        lags = [graph.seconds[node] if kinds[node] is NodeKind.NOT_BEFORE else 0.0 for node in rank.compute]
        released = np.array([row[node] for node in hosts], dtype=np.intp), np.array(lags)
        host, compute = (
            [at for at, node in enumerate(nodes) if kinds[node] in _BREAKS] for nodes in (rank.host, rank.compute)
        )
        return cls(rank, list(rank.delays), queued, released, host, compute)


class Dependencies:
    """Writes the operations of a run's first iterations, in an order in which they can be done.

    Args:
        run: that showed the order of each resource.
        iterations: how many.

    Attributes:
        graph: of these iterations.
        row, kind, queued: by node of it, as `Rows` and `StepGraph` have them.
        lanes: the lanes of ranks that meet: of all that have messages on one, or of each that goes on by itself.
    """

    def __init__(self, run: JobRun, iterations: int) -> None:
        self._run, self.graph = run, run.graph.until(iterations)
        self.rows = Rows.in_graph(self.graph)
        # By row, as everything that follows.
        self._known = bytearray(self.rows.count)
        self._known[0] = 1
        self._cursors = [_Cursor.of(rank, self.graph, self.rows.of) for rank in self.graph.ranks]
        numbers, count = range(len(self._cursors)), range(len(run.graph.ranks[0].lanes))
        if goes_apart(run):
            self.lanes = [([number], lane) for number in numbers for lane in count]
        else:
            self.lanes = [([n for n in numbers if self.graph.ranks[n].lanes[lane]], lane) for lane in count]
        self._at_lane = [0] * len(self.lanes)
        self.operations = list(self._write())
        self.row, self.queued = (np.array(each, dtype=np.intp) for each in (self.rows.of, self.graph.queued))
        self.kind = numbers_of(self.graph.kind)

    def _write(self) -> Iterator[Operation]:
        going = True
        while going:
            going = False
            for number, cursor in enumerate(self._cursors):
                for operation in self._list_operations(number, cursor):
                    going = True
                    yield operation
            for place in range(len(self.lanes)):
                while (meeting := self._meeting(place)) is not None:
                    going = True
                    yield meeting
        left = self._known.count(0)
        assert not left, f"{left} nodes wait for others for ever"

    def _all_known(self, nodes: Sequence[int]) -> bool:
        row, known = self.rows.of, self._known
        return all(known[row[node]] for node in nodes)

    def _end(self, first: int, stop: int) -> None:
        self._known[first:stop] = b"\1" * (stop - first)

    def _list_operations(self, number: int, cursor: _Cursor) -> Iterator[Operation]:
        going = True
        while going:
            going = False
            steps = (self._next_of_host, self._next_of_compute, self._next_copy, self._next_delay)
            for step in steps:
                while (operation := step(number, cursor)) is not None:
                    going = True
                    yield operation

    # One resource after the other: the next operation, or None where it has to wait.

    def _next_of_host(self, number: int, cursor: _Cursor) -> Operation | None:
        host, at, graph, row = cursor.rank.host, cursor.at_host, self.graph, self.rows.of
        if at == len(host):
            return None
        node = host[at]
        before, kind = (row[host[at - 1]] if at else 0), graph.kind[node]
        if kind in _BREAKS and not self._all_known(graph.after[node]):
            return None
        after = [row[each] for each in graph.after[node]]
        if kind is NodeKind.LOAD or kind is NodeKind.RESUME:
            cursor.at_host += 1
            first = row[node]
            self._end(first, first + 1)
            return _load(first, before, number) if kind is NodeKind.LOAD else _resume(first, before, after, number)
        stops = cursor.host_stops
        stop = stops[found] if (found := bisect_right(stops, at)) < len(stops) else len(host)
        paced = [graph.kind[each] is NodeKind.PACED for each in host[at:stop]] if cursor.rank.one_thread else []
        if kind is NodeKind.WAIT and any(paced):
            stop, paced = at + 1, []
        cursor.at_host = stop
        first, last = row[node], row[node] + stop - at
        self._end(first, last)
        return (
            _run_paced(first, last, before, paced, number)
            if any(paced)
            else _run_in_turn(first, last, [before, *after])
        )

    def _next_of_compute(self, number: int, cursor: _Cursor) -> Operation | None:
        compute, at, graph, row = cursor.rank.compute, cursor.at_compute, self.graph, self.rows.of
        if at == len(compute) or cursor.queued[at] >= cursor.at_host:
            return None
        node = compute[at]
        before, kind = (row[compute[at - 1]] if at else 0), graph.kind[node]
        if kind in _BREAKS and not self._all_known(graph.after[node]):
            return None
        after = [row[each] for each in graph.after[node]]
        if kind is NodeKind.COPY:
            cursor.at_compute += 1
            self._end(row[node], row[node] + 1)
            return _run_lasting(row[node], [before, row[graph.queued[node]], *after])
        stops = cursor.compute_stops
        stop = stops[found] if (found := bisect_right(stops, at)) < len(stops) else len(compute)
        stop = bisect_left(cursor.queued, cursor.at_host, at, stop)
        cursor.at_compute = stop
        first, last = row[node], row[node] + stop - at
        self._end(first, last)
        released, lags_s = cursor.released
        return _run_queued(first, last, [before, *after], released[at:stop], lags_s[at:stop])

    def _next_copy(self, number: int, cursor: _Cursor) -> Operation | None:
        at, copies, row = cursor.at_copies, cursor.rank.copies, self.rows.of
        if at == len(copies):
            return None
        node = copies[at]
        queued = self.graph.queued[node]
        if not self._known[row[queued]]:
            return None
        cursor.at_copies += 1
        self._end(row[node], row[node] + 1)
        return _run_lasting(row[node], [row[copies[at - 1]] if at else 0, row[queued]])

    def _next_delay(self, number: int, cursor: _Cursor) -> Operation | None:
        for place, node in enumerate(cursor.delays):
            if self._all_known(after := self.graph.after[node]):
                del cursor.delays[place]
                row = self.rows.of
                self._end(row[node], row[node] + 1)
                return _run_lasting(row[node], [row[each] for each in after])
        return None

    def _meeting(self, place: int) -> Operation | None:
        graph, row, at, run = self.graph, self.rows.of, self._at_lane[place], self._run
        ranks, lane = self.lanes[place]
        lanes = [self._cursors[number].rank.lanes[lane] for number in ranks]
        if not lanes or any(len(each) <= at for each in lanes):
            return None
        nodes = [each[at] for each in lanes]
        if not all(self._all_known(graph.after[node]) for node in nodes):
            return None
        self._at_lane[place] += 1
        for node in nodes:
            self._end(row[node], row[node] + 1)
        arrivals = []
        for number, node in enumerate(nodes):
            after = [row[each] for each in graph.after[node]]
            if at and run.job.options.comm != "real":
                after.append(row[lanes[number][at - 1]])
            arrivals.append((row[node], after))
        if run.job.options.comm != "real":
            return _meet_apart(arrivals)
        return _meet(arrivals, place, in_line=is_in_line(run, lane))


def _run_in_turn(first: int, stop: int, begin: Sequence[int]) -> Operation:
    """One after the other, the first when the last of others has ended."""

    def done(now: Moments) -> None:
        ends = now.end[first:stop]
        np.cumsum(now.lasts[first:stop], axis=0, out=ends)
        ends += _find_last(now.end, begin)

    return done


def _run_queued(first: int, stop: int, after: Sequence[int], released: NDArray[np.intp], lags_s: Columns) -> Operation:
    """One after the other, none before the host has queued it, the first when the last of others has ended."""
    places = np.flatnonzero(lags_s)
    seconds = lags_s[places, None]

    def done(now: Moments) -> None:
        lasts, begin = now.lasts[first:stop], now.end[released]
        if len(places):
            begin[places] += seconds
        worked = np.cumsum(lasts, axis=0)
        begin -= worked
        begin += lasts
        np.maximum(begin[0], _find_last(now.end, after), out=begin[0])
        np.maximum.accumulate(begin, axis=0, out=begin)
        np.add(begin, worked, out=now.end[first:stop])

    return done


def _run_paced(first: int, stop: int, before: int, paced: Sequence[bool], number: int) -> Operation:
    """One after the other, layers that sleep no sooner than they are due."""
    sleeps = np.array(paced)[:, None]

    def done(now: Moments) -> None:
        lasts = now.lasts[first:stop]
        slept = np.cumsum(np.where(sleeps, lasts, 0.0), axis=0)
        worked = np.where(sleeps, 0.0, lasts)
        done_by = np.cumsum(worked, axis=0)
        begin = np.where(sleeps, now.due[number] + slept - done_by, -np.inf)
        np.maximum(begin[0], now.end[before], out=begin[0])
        np.maximum.accumulate(begin, axis=0, out=begin)
        now.end[first:stop] = begin + done_by
        now.due[number] = now.due[number] + slept[-1]

    return done


def _resume(row: int, before: int, after: Sequence[int], number: int) -> Operation:
    def done(now: Moments) -> None:
        end = now.end[row] = now.end[before]
        now.due[number] = now.due[number] + end - now.end[after[0]] if after else end

    return done


def _run_lasting(row: int, begin: Sequence[int]) -> Operation:
    """So long after the last of others has ended."""

    def done(now: Moments) -> None:
        now.end[row] = _find_last(now.end, begin) + now.lasts[row]

    return done


def _load(row: int, before: int, number: int) -> Operation:
    def done(now: Moments) -> None:
        asked = zip(now.loaders[number], now.end[before].tolist(), strict=True)
        now.end[row] = [loader.take(moment) for loader, moment in asked]

    return done


Arrival = tuple[int, list[int]]
"""A collective's row on one rank, and what it comes after there."""


def _meet(arrivals: Sequence[Arrival], place: int, *, in_line: bool) -> Operation:
    """A collective for which ranks meet, on the first stream of its lane that is free."""

    def done(now: Moments) -> None:
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

    def done(now: Moments) -> None:
        for row, after in arrivals:
            now.begin[row] = now.wire[row] = now.end[row] = _find_last(now.end, after)

    return done


def _find_last(end: Columns, rows: Sequence[int]) -> Columns:
    found: Columns = end[rows[0]]
    for row in rows[1:]:
        found = np.maximum(found, end[row])
    return found
