"""A resolved job as it runs: its graph, when each node began and ended, and its period."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import simpy
from numpy.typing import NDArray

from ddpsim.network.fluid import Network
from ddpsim.options.input_stage import Loader
from ddpsim.simulation.build import build_rank
from ddpsim.simulation.communication import Communication, JobResources
from ddpsim.simulation.costs import Costs
from ddpsim.simulation.graph import StepGraph
from ddpsim.simulation.representatives import SimulatedRank
from ddpsim.simulation.resolve import ResolvedJob, SimulatedIterations
from ddpsim.simulation.run import GraphRun, NodeTimes, Progress, report
from ddpsim.simulation.setting import RankConfiguration
from ddpsim.topology.graph import Placement
from ddpsim.trace.records import cycles

Columns = NDArray[np.float64]
"""Numbers whose last axis is the assumptions."""


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
    """A job that has been run.

    Attributes:
        shared: what the ranks communicated on.
        beside: another job that ran with it; None where none did.
    """

    graph: StepGraph
    times: NodeTimes
    shared: Communication
    beside: OtherJob | None = None

    @classmethod
    def of(cls, job: ResolvedJob, started: StartedJob, beside: OtherJob | None = None) -> JobRun:
        """Return the run of a job, which has started and ended."""
        return cls(
            job.job, job.workload, job.kinds, job.draws, job.settings, job.schedule, job.extent,
            started.graph, started.run.times, started.shared, beside,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class StartedJob:
    """A job whose ranks have begun in a simulation that has not been run yet."""

    graph: StepGraph
    run: GraphRun
    shared: Communication


def start(
    job: ResolvedJob,
    env: simpy.Environment,
    progress: Progress | None = None,
    network: Network | None = None,
    sender: Hashable = None,
) -> StartedJob:
    """Build what each simulated rank does and let it begin in `env`.

    Args:
        env: the simulation.
        progress: as that of `run_job`.
        network: that another job is on too; None is one of the job's own.
        sender: whose messages the job's are, where others are on the network too.
    """
    settings = job.settings
    shared = job.job.communication(env, settings[0].scheduled, network, sender)
    lanes = job.job.options.process_groups if shared.lanes is None else len(shared.lanes.groups)
    graph = StepGraph()
    for draw, setting in zip(job.draws, settings, strict=True):
        build_rank(graph, setting, draw.rank, lanes)
    late_s = [setting.late_s for setting in settings]
    run = on_resources(job.job, shared, graph, job.draws, settings, [setting.costs for setting in settings], late_s)
    report(run, graph.ranks[0], progress)
    return StartedJob(graph, run, shared)


def on_resources(
    job: JobResources,
    shared: Communication,
    graph: StepGraph,
    draws: Sequence[SimulatedRank],
    settings: Sequence[RankConfiguration],
    costs: Sequence[Costs],
    late_s: Sequence[float],
) -> GraphRun:
    """Return a run of a graph that has yet to be run, each rank on its resources.

    Args:
        costs: of DDP, by rank.
        late_s: by rank, how long a collective waits for multiprocessors.
    """
    env, scheduled = shared.env, settings[0].scheduled
    links = job.channels(env, scheduled, shared.collectives)
    transfer = shared.transfer if job.options.comm == "real" else None
    together, run = shared.on_busy(), GraphRun(env, graph, transfer, shared.collectives.streams_per_group)
    for draw, setting, rank, own, late in zip(draws, settings, graph.ranks, costs, late_s, strict=True):
        on_busy = together if links is None else links.on_busy(draw.rank)
        run.add(
            rank,
            job.processor(shared, setting, own, on_busy),
            late_s=late,
            loader=None if setting.input_stage is None else Loader(setting.input_stage),
            copy=job.copy(env, setting, shared.collectives.network, draw.stands_for),
            channel=None if links is None else links.attendance(draw.rank),
        )
    return run


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
    dropped = any(run.job.options.drop.values())
    steps = run.job.options.periodic.get("steps", 1)
    found = []
    for rank, setting in zip(run.graph.ranks, run.settings, strict=True):
        if rank.number < 0:
            continue
        counted = rank.iterations[extent.begin : extent.end]
        marks = [Period(each.start, each.end, setting.optimises(each.index)) for each in counted]
        means = [np.mean([end(each.end) - end(each.begin) for each in group], axis=0) for group in cycles(marks, steps)]
        found.append(np.mean(means, axis=0) if dropped else _median(means))
    slowest: Columns = np.max(found, axis=0)
    return slowest


def _median(values: Sequence[Columns]) -> Columns:
    """Return the median; numpy's own imports masked arrays, which takes longer than all medians of a command."""
    ordered, count = np.sort(values, axis=0), len(values)
    middle: Columns = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    return middle
