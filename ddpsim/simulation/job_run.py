"""A job that has been run: what it rests on, its graph, and when each node began and ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ddpsim.jobs.simulated import Options
from ddpsim.schedules.schedule import Schedule
from ddpsim.simulation.communication import Communication, JobResources
from ddpsim.simulation.graph import StepGraph
from ddpsim.simulation.representatives import RankKind, SimulatedRank
from ddpsim.simulation.run import NodeTimes
from ddpsim.simulation.setting import RankConfiguration
from ddpsim.topology.graph import Placement
from ddpsim.trace.cycles import cycles
from ddpsim.workload import Workload

Columns = NDArray[np.float64]
"""Numbers whose last axis is the assumptions."""

WARM_UP = 3
"""Iterations simulated before those that count: the host's lead over the device settles in two."""


@dataclass(frozen=True, slots=True)
class SimulatedIterations:
    """An extent says which iterations are simulated, and which of them count.

    Attributes:
        begin, end: of those that count, half open.
        total: that are simulated.
    """

    begin: int
    end: int
    total: int

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
class JobRun:
    """A job that has been run.

    Attributes:
        workload: of rank 0, as it was asked for.
        kinds: of ranks.
        draws: who was simulated for which of them; by rank of the graph, as `settings`.
        schedule: that took the place of DDP's buckets, as it was made; None where nothing did.
        shared: what the ranks communicated on.
        beside: another job that ran with it; None where none did.
    """

    job: JobResources
    workload: Workload
    kinds: Sequence[RankKind]
    draws: Sequence[SimulatedRank]
    settings: Sequence[RankConfiguration]
    schedule: Schedule | None
    extent: SimulatedIterations
    graph: StepGraph
    times: NodeTimes
    shared: Communication
    beside: OtherJob | None = None


@dataclass(frozen=True, slots=True)
class Period:
    """One iteration of a rank: where it begins and ends, and whether the optimizer ends it with a step."""

    begin: int
    end: int
    stepped: bool


def period_of(run: JobRun, extent: SimulatedIterations, end: Callable[[int], Columns]) -> Columns:
    """Return the period of the slowest rank: the median of its cycles' means, the mean where layers are left out.

    Args:
        extent: which iterations count.
        end: of a node; one number, or several at once.
    """
    centre = np.mean if any(run.job.options.drop.values()) else np.median
    steps = run.job.options.periodic.get("steps", 1)
    found = []
    for rank, setting in zip(run.graph.ranks, run.settings, strict=True):
        if rank.number < 0:
            continue
        counted = rank.iterations[extent.begin : extent.end]
        marks = [Period(each.start, each.end, setting.optimises(each.index)) for each in counted]
        means = [np.mean([end(each.end) - end(each.begin) for each in group], axis=0) for group in cycles(marks, steps)]
        found.append(centre(means, axis=0))
    slowest: Columns = np.max(found, axis=0)
    return slowest
