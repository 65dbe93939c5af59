"""What collectives take under several assumptions at once, from their transports' demands: a column an assumption.

A demand is a latency, stalls between its steps, and bytes at the rate of the slower of links and threads. While ranks
compute, bytes move slower and threads keep up with less, as in `ddpsim.simulation.communication`; the share of a
collective's time in which they do is given. What a run saw beyond that, of others on the same links, stays as a ratio.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ddpsim.collectives.execute import Collectives
from ddpsim.operations import Operation
from ddpsim.simulation.graph import BUFFERS, Collective
from ddpsim.simulation.job_run import Columns, JobRun
from ddpsim.simulation.prices import Prices

Key = tuple[str, int, int]
"""Operation, bytes and lane: what tells one collective's time from another's."""


def key_of(collective: Collective) -> Key:
    """Return what tells the time of a collective."""
    return str(collective.operation), collective.size_bytes, collective.lane


class CollectiveTimes:
    """Times of the distinct collectives of a run under several assumptions.

    Args:
        run: whose transports they go by.
        prices: of DDP's costs.
        collectives: one of each kind; rows are in their order.
    """

    def __init__(self, run: JobRun, prices: Prices, collectives: Sequence[Collective]) -> None:
        self._run = run
        self.rows = {key_of(collective): row for row, collective in enumerate(collectives)}
        costs = prices.costs
        hops = [tuple(self._group(each).transport.hops) for each in collectives]
        known = {each: [cost.slowed_by(each) for cost in costs] for each in dict.fromkeys(hops)}
        slowed = np.array([known[each] for each in hops])
        steps = np.maximum(np.array([each.step_slowdown for each in costs]) / slowed, 1.0)
        told = [self._demand(collective) for collective in collectives]
        latency, stall, links, threads, slow = (np.array(each)[:, None] for each in zip(*told, strict=True))
        self._wire = np.array([prices.wire(self._sized(collective)) for collective in collectives])
        self.latency_s: Columns = latency * self._wire
        self._idle_s: Columns = (stall + np.maximum(links, threads)) * self._wire
        busy = stall + np.where(slow > 0, np.maximum(links, threads * steps) * slowed, np.maximum(links, threads))
        self._busy_s: Columns = busy * self._wire
        self.alone_s: Columns = self.latency_s + self._idle_s
        floors = [each.broadcast_s for each in costs]
        self.floor_s: Columns = np.array(
            [floors if collective.operation == BUFFERS else [0.0] * len(costs) for collective in collectives]
        )
        self.busy_matters = bool((self._busy_s != self._idle_s).any())

    def bytes_s(self, rows: Columns, busy: Columns) -> Columns:
        """Return how long bytes are on their way, of which computing goes on beside them for the share `busy`."""
        idle_s, busy_s = self._idle_s[rows], self._busy_s[rows]
        with np.errstate(divide="ignore", invalid="ignore"):
            slower = 1 / ((1 - busy) / idle_s + busy / busy_s)
        return np.where(idle_s > 0, slower, 0.0)

    def _group(self, collective: Collective) -> Collectives:
        """Return what carries a collective."""
        shared = self._run.shared
        world = shared.lanes is None or collective.operation == BUFFERS
        return shared.collectives if shared.lanes is None or world else shared.lanes.groups[collective.lane]

    def _sized(self, collective: Collective) -> int:
        lanes = self._run.shared.lanes
        if lanes is None or collective.operation == BUFFERS:
            return collective.size_bytes
        return lanes.together[collective.lane] * collective.size_bytes

    def _demand(self, collective: Collective) -> tuple[float, float, float, float, float]:
        lanes, group, buffers = self._run.shared.lanes, self._group(collective), collective.operation == BUFFERS
        operation = Operation.BROADCAST if buffers else Operation(collective.operation)
        demand, capacities = group.transport.demand(operation, self._sized(collective)), group.transport.capacities
        size_bytes, latency_s = demand.size_bytes, demand.latency_s
        links_s = size_bytes / min(demand.alone(capacities), demand.rate_limit)
        threads_s = size_bytes / demand.host_limit
        slowed = self._run.job.options.fidelity != "closed" and bool(demand.loads) and size_bytes > 0
        if lanes is not None and not buffers and lanes.lines[collective.lane] is not None:
            latency_s = 0.0
        return latency_s, demand.stall_s, links_s, threads_s, float(slowed and math.isfinite(links_s))
