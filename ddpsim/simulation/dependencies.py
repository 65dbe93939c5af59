"""The nodes of a run in an order in which each comes after all that it waits for, as operations on columns of ends.

Streams, the host, the loader and the collectives of a lane keep the order that the run showed. What lies on one stream
between two waits is one operation: an end is the sum of what the nodes take, from the latest of where they could begin.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field

import numpy as np

from ddpsim.dataclass import dataclass
from ddpsim.options.input_stage import Loader
from ddpsim.simulation.graph import ORIGIN, NodeKind, RankGraph, StepGraph
from ddpsim.simulation.job_run import Columns, JobRun

_WORK = (NodeKind.COMPUTE, NodeKind.MARK, NodeKind.EVENT, NodeKind.NOT_BEFORE)
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
        free: by lane, when each of its streams is, the earlier first.
        due: by rank, when the next layer that sleeps is due.
        line: by lane, the latency of a message in line, and when the last has ended.
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
        of: by node; -1 of what is behind the last iteration that is looked at.
        streams: by rank its host's or only thread's, computing and copying streams, its lanes, and delays: nodes.
        count: of rows; row 0 is the origin's.
    """

    of: list[int]
    streams: list[tuple[list[int], list[int], list[int], list[list[int]], list[int]]]
    count: int = 1

    @classmethod
    def until(cls, graph: StepGraph, iterations: int) -> Rows:
        """Return the rows of the first iterations of all ranks."""
        rows = cls([-1] * len(graph.kind), [])
        rows.of[ORIGIN] = 0
        for rank in graph.ranks:
            last = rank.iterations[iterations - 1].end
            host, compute, copies, delays = (
                nodes[: bisect_right(nodes, last)] for nodes in (rank.host, rank.compute, rank.copies, rank.delays)
            )
            lanes = [nodes[: bisect_right(nodes, last)] for nodes in rank.lanes]
            for nodes in (host, compute, copies, *lanes, delays):
                for node in nodes:
                    rows.of[node] = rows.count
                    rows.count += 1
            rows.streams.append((host, compute, copies, lanes, delays))
        return rows


@dataclass(slots=True, eq=False)
class _Cursor:
    """Says how far one rank's resources have been put in order."""

    rank: RankGraph
    host: list[int]
    compute: list[int]
    copies: list[int]
    lanes: list[list[int]]
    delays: list[int]
    at_host: int = 0
    at_compute: int = 0
    at_copies: int = 0
    queued: list[int] = field(default_factory=list)
    host_stops: list[int] = field(default_factory=list)
    compute_stops: list[int] = field(default_factory=list)


class Dependencies:
    """Writes the operations of a run's first iterations, in an order in which they can be done.

    Args:
        run: that showed the order of each resource.
        iterations: how many.
    """

    def __init__(self, run: JobRun, iterations: int) -> None:
        self._run, self._graph = run, run.graph
        self.rows = Rows.until(run.graph, iterations)
        self._known = bytearray(len(run.graph.kind))
        self._known[ORIGIN] = 1
        self._cursors = [
            self._cursor(rank, *streams) for rank, streams in zip(run.graph.ranks, self.rows.streams, strict=True)
        ]
        self._at_lane = [0] * len(run.graph.ranks[0].lanes)
        self.operations = list(self._write())

    def _cursor(
        self,
        rank: RankGraph,
        host: list[int],
        compute: list[int],
        copies: list[int],
        lanes: list[list[int]],
        delays: list[int],
    ) -> _Cursor:
        kinds, queued, place = self._graph.kind, self._graph.queued, {node: at for at, node in enumerate(host)}
        cursor = _Cursor(rank, host, compute, copies, lanes, list(delays))
        cursor.queued = [place.get(queued[node], -1) for node in compute]
        cursor.host_stops = [at for at, node in enumerate(host) if kinds[node] in _BREAKS]
        cursor.compute_stops = [at for at, node in enumerate(compute) if kinds[node] in _BREAKS]
        return cursor

    def _write(self) -> Iterator[Operation]:
        going = True
        while going:
            going = False
            for number, cursor in enumerate(self._cursors):
                for operation in self._of_rank(number, cursor):
                    going = True
                    yield operation
            for lane in range(len(self._at_lane)):
                while (meeting := self._meeting(lane)) is not None:
                    going = True
                    yield meeting
        left = sum(not self._known[node] for node, row in enumerate(self.rows.of) if row >= 0)
        assert not left, f"{left} nodes wait for others for ever"

    def _all_known(self, nodes: Sequence[int]) -> bool:
        return all(self._known[node] for node in nodes)

    def _end(self, nodes: Sequence[int]) -> None:
        for node in nodes:
            self._known[node] = 1

    def _of_rank(self, number: int, cursor: _Cursor) -> Iterator[Operation]:
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
        host, at, graph, row = cursor.host, cursor.at_host, self._graph, self.rows.of
        if at == len(host):
            return None
        node = host[at]
        before, kind = (row[host[at - 1]] if at else 0), graph.kind[node]
        if kind in _BREAKS:
            if not self._all_known(graph.after[node]):
                return None
            cursor.at_host += 1
            self._end([node])
            after = [row[each] for each in graph.after[node]]
            if kind is NodeKind.LOAD:
                return _load(row[node], before, number)
            if kind is NodeKind.RESUME:
                return _resume(row[node], before, after, number)
            return _latest(row[node], [before, *after])
        stops = cursor.host_stops
        stop = stops[found] if (found := bisect_left(stops, at)) < len(stops) else len(host)
        nodes = host[at:stop]
        cursor.at_host = stop
        self._end(nodes)
        first = row[node]
        if cursor.rank.one_thread and any(graph.kind[each] is NodeKind.PACED for each in nodes):
            return _paced(first, first + len(nodes), before, [graph.kind[n] is NodeKind.PACED for n in nodes], number)
        return _in_turn(first, first + len(nodes), before)

    def _next_of_compute(self, number: int, cursor: _Cursor) -> Operation | None:
        compute, at, graph, row = cursor.compute, cursor.at_compute, self._graph, self.rows.of
        if at == len(compute) or cursor.queued[at] >= cursor.at_host:
            return None
        node = compute[at]
        before, kind = (row[compute[at - 1]] if at else 0), graph.kind[node]
        if kind in _BREAKS:
            if not self._all_known(graph.after[node]):
                return None
            cursor.at_compute += 1
            self._end([node])
            after = [row[each] for each in graph.after[node]]
            begin = [before, row[graph.queued[node]], *after]
            return _latest(row[node], begin) if kind is NodeKind.WAIT else _lasting(row[node], begin)
        stops = cursor.compute_stops
        stop = stops[found] if (found := bisect_left(stops, at)) < len(stops) else len(compute)
        stop = bisect_left(cursor.queued, cursor.at_host, at, stop)
        nodes = compute[at:stop]
        cursor.at_compute = stop
        self._end(nodes)
        lags = [(place, graph.seconds[n]) for place, n in enumerate(nodes) if graph.kind[n] is NodeKind.NOT_BEFORE]
        return _queued_work(row[node], row[node] + len(nodes), before, [row[graph.queued[n]] for n in nodes], lags)

    def _next_copy(self, number: int, cursor: _Cursor) -> Operation | None:
        if cursor.at_copies == len(cursor.copies):
            return None
        at, row = cursor.at_copies, self.rows.of
        node = cursor.copies[at]
        queued = self._graph.queued[node]
        if not self._known[queued]:
            return None
        cursor.at_copies += 1
        self._end([node])
        return _lasting(row[node], [row[cursor.copies[at - 1]] if at else 0, row[queued]])

    def _next_delay(self, number: int, cursor: _Cursor) -> Operation | None:
        for place, node in enumerate(cursor.delays):
            if self._all_known(after := self._graph.after[node]):
                del cursor.delays[place]
                self._end([node])
                return _lasting(self.rows.of[node], [self.rows.of[each] for each in after])
        return None

    def _meeting(self, lane: int) -> Operation | None:
        graph, row, at, run = self._graph, self.rows.of, self._at_lane[lane], self._run
        if any(len(cursor.lanes[lane]) <= at for cursor in self._cursors):
            return None
        nodes = [cursor.lanes[lane][at] for cursor in self._cursors]
        if not all(self._all_known(graph.after[node]) for node in nodes):
            return None
        self._at_lane[lane] += 1
        self._end(nodes)
        arrivals = []
        for number, node in enumerate(nodes):
            after = [row[each] for each in graph.after[node]]
            if at and run.job.options.comm != "real":
                after.append(row[self._cursors[number].lanes[lane][at - 1]])
            arrivals.append((row[node], after))
        if run.job.options.comm != "real":
            return _apart(arrivals)
        lanes = run.shared.lanes
        in_line = lanes is not None and lanes.lines[lane] is not None
        return _meet(arrivals, lane, in_line=in_line)


def _in_turn(first: int, stop: int, before: int) -> Operation:
    """One after the other."""

    def done(now: Moments) -> None:
        ends = now.end[first:stop]
        np.cumsum(now.lasts[first:stop], axis=0, out=ends)
        ends += now.end[before]

    return done


def _queued_work(
    first: int, stop: int, before: int, queued: Sequence[int], lags: Sequence[tuple[int, float]]
) -> Operation:
    """One after the other, none before the host has queued it."""
    released = np.array(queued)
    places, seconds = np.array([p for p, s in lags if s], dtype=np.intp), np.array([s for _, s in lags if s])[:, None]

    def done(now: Moments) -> None:
        lasts, begin = now.lasts[first:stop], now.end[released]
        if len(places):
            begin[places] += seconds
        worked = np.cumsum(lasts, axis=0)
        begin -= worked
        begin += lasts
        np.maximum(begin[0], now.end[before], out=begin[0])
        np.maximum.accumulate(begin, axis=0, out=begin)
        np.add(begin, worked, out=now.end[first:stop])

    return done


def _paced(first: int, stop: int, before: int, paced: Sequence[bool], number: int) -> Operation:
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


def _latest(row: int, begin: Sequence[int]) -> Operation:
    """When the last of others has ended."""

    def done(now: Moments) -> None:
        now.end[row] = _last(now.end, begin)

    return done


def _lasting(row: int, begin: Sequence[int]) -> Operation:
    """So long after the last of others has ended."""

    def done(now: Moments) -> None:
        now.end[row] = _last(now.end, begin) + now.lasts[row]

    return done


def _load(row: int, before: int, number: int) -> Operation:
    def done(now: Moments) -> None:
        asked = zip(now.loaders[number], now.end[before].tolist(), strict=True)
        now.end[row] = [loader.take(moment) for loader, moment in asked]

    return done


Arrival = tuple[int, list[int]]
"""A collective's row on one rank, and what it comes after there."""


def _meet(arrivals: Sequence[Arrival], lane: int, *, in_line: bool) -> Operation:
    """A collective for which all ranks meet, on the first stream of its lane that is free."""

    def done(now: Moments) -> None:
        free, wire = now.free[lane], None
        for row, after in arrivals:
            begin = now.begin[row] = np.maximum(_last(now.end, after), free[0]) + now.late[row]
            wire = begin if wire is None else np.maximum(wire, begin)
        assert wire is not None
        sent = np.maximum(wire + now.line[lane][0], now.line[lane][1]) if in_line else wire
        end = sent + now.lasts[arrivals[0][0]]
        if in_line:
            now.line[lane][1] = end
        for row, _ in arrivals:
            now.wire[row], now.end[row] = wire, end
        if len(free) == 1:
            free[0] = end
        else:
            free[:] = [np.minimum(free[1], end), np.maximum(free[1], end)]

    return done


def _apart(arrivals: Sequence[Arrival]) -> Operation:
    """Collectives that take no time, each rank by itself."""

    def done(now: Moments) -> None:
        for row, after in arrivals:
            now.begin[row] = now.wire[row] = now.end[row] = _last(now.end, after)

    return done


def _last(end: Columns, rows: Sequence[int]) -> Columns:
    found: Columns = end[rows[0]]
    for row in rows[1:]:
        found = np.maximum(found, end[row])
    return found
