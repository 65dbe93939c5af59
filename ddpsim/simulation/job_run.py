"""A resolved job and its run: what its ranks do, when each node began and ended, and the period that comes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from ddpsim.jobs.simulated import Options
from ddpsim.network.intervals import Columns
from ddpsim.schedules.schedule import Schedule
from ddpsim.simulation.communication import Communication, JobResources
from ddpsim.simulation.graph import StepGraph
from ddpsim.simulation.representatives import RankKind, SimulatedRank
from ddpsim.simulation.run import GraphRun, NodeTimes
from ddpsim.simulation.setting import RankConfiguration
from ddpsim.topology.graph import Placement
from ddpsim.trace.cycles import cycles
from ddpsim.workload import Workload

WARM_UP = 3
"""Iterations simulated before those that count: the host's lead over the device settles in two."""


@dataclass(frozen=True, slots=True)
class SimulatedIterations:
    """Which iterations are simulated, and which of them count.

    Attributes:
        begin, end: of those that count, half open.
        total: that are simulated.
        repeats: for how many more micro-batches of its step the last but one of each stands.
    """

    begin: int
    end: int
    total: int
    repeats: int = 0

    @classmethod
    def of(
        cls, options: Options, iterations: int, warm_up: int, schedule: Schedule | None, *, whole: bool
    ) -> SimulatedIterations:
        """Return the extent of a run that counts so many periods, each of which sends the same.

        A schedule's last iteration leaves messages in flight, which one period more sees to their end. Where forward
        makes updates, it takes `WARM_UP` until periods are alike.
        """
        if schedule is not None and schedule.update != "after_backward":
            warm_up = max(warm_up, WARM_UP)
        begin, period = warm_up * options.period, options.period
        end = begin + iterations * period
        return cls(begin, end, end + (period if schedule is not None and whole else 0))


@dataclass(frozen=True, slots=True, eq=False)
class ResolvedJob:
    """All that a step rests on.

    Attributes:
        job: what its ranks compute and communicate on.
        workload: of rank 0, as it was asked for.
        kinds: of ranks.
        draws: who is simulated for which of them; by rank of the graph, as `settings`.
        settings: what each simulated rank runs.
        schedule: that took the place of DDP's buckets, as it was made; None where nothing did.
        extent: which iterations are simulated, and which of them count.
    """

    job: JobResources
    workload: Workload
    kinds: Sequence[RankKind]
    draws: Sequence[SimulatedRank]
    settings: Sequence[RankConfiguration]
    schedule: Schedule | None
    extent: SimulatedIterations


@dataclass(frozen=True, slots=True)
class OtherJob:
    """What was seen of the job beside.

    Attributes:
        workload: its name.
        placement: its nodes.
        iteration_s: median of the later half of its iterations, micro-batches, that ended before the job asked about;
            None where none did.
    """

    workload: str
    placement: Placement
    iteration_s: float | None

    @property
    def nodes(self) -> tuple[int, ...]:
        """Which nodes of the machine it has."""
        return tuple(map(self.placement.topology.fabric.number, range(self.placement.nodes)))


@dataclass(frozen=True, slots=True, eq=False)
class JobRun(ResolvedJob):
    """A job whose ranks have begun, in a simulation that may have ended.

    Attributes:
        graph: what its ranks do.
        run: of that graph.
        times: when its nodes began and ended, as far as it has come.
        shared: what the ranks communicate on.
        beside: another job that ran with it; None where none did.
    """

    graph: StepGraph
    run: GraphRun
    times: NodeTimes
    shared: Communication
    beside: OtherJob | None = None


def numbers_of(members: Sequence[IntEnum]) -> NDArray[np.intp]:
    """Return the numbers of members below 256; numpy itself asks each member for its own, which takes eighty times as
    long."""
    return np.frombuffer(bytes(members), np.uint8).astype(np.intp)


def goes_apart(run: JobRun) -> bool:
    """Whether each rank of a run sends its messages without meeting the others."""
    return run.job.options.asynchronous and run.job.options.comm == "real"


def is_in_line(run: JobRun, lane: int) -> bool:
    """Whether messages of a lane wait out their latency behind one another."""
    if goes_apart(run):
        return run.shared.collectives.sends_in_line
    return run.shared.lanes[lane].line is not None


def period_of(run: JobRun, extent: SimulatedIterations, end: Callable[[int], Columns]) -> Columns:
    """Return the period of the slowest rank: the median of its cycles' means, the mean where layers are left out.

    Args:
        extent: which iterations count.
        end: of a node; one number, or several at once.
    """
    dropped = any(run.job.options.drop.values())
    steps = run.job.options.periodic.get("steps", 1)
    found = []
    for rank in run.graph.ranks:
        if rank.number < 0:
            continue
        periods = cycles(rank.iterations[extent.begin : extent.end], steps)
        lasts = [[end(each.end) - end(each.start) for each in period] for period in periods]
        if extent.repeats:
            slowest_s = find_repeated_s(run, extent, end)
            steps_s = [np.sum(each, axis=0) + extent.repeats * s for each, s in zip(lasts, slowest_s, strict=True)]
            means = [each / (len(lasts[0]) + extent.repeats) for each in steps_s]
        else:
            means = [np.mean(each, axis=0) for each in lasts]
        found.append(np.mean(means, axis=0) if dropped else _median(means))
    slowest: Columns = np.max(found, axis=0)
    return slowest


def find_repeated_s(run: JobRun, extent: SimulatedIterations, end: Callable[[int], Columns]) -> list[Columns]:
    """Return by step how long its last micro-batch but one lasts on the slowest rank, for which all wait at the end."""
    steps = [cycles(rank.iterations[extent.begin : extent.end]) for rank in run.graph.ranks]
    return [
        np.max([end(each[-2].end) - end(each[-2].start) for each in of_ranks], axis=0)
        for of_ranks in zip(*steps, strict=True)
    ]


def _median(values: Sequence[Columns]) -> Columns:
    """Return the median; numpy's own imports masked arrays, which takes longer than all medians of a command."""
    ordered, count = np.sort(values, axis=0), len(values)
    middle: Columns = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    return middle
