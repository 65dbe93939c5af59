"""The run of a resolved job, alone or beside another: when each node began and ended, and the period that comes of it.

Read `start`, which builds the graphs of all simulated ranks and lets them begin. `BesideRun` runs two jobs on one
fabric in one simulation, where their messages share the links between switches. The other job trains for as long as the
one that is asked about: it is given steps until it outlasts that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from statistics import median

import numpy as np
import simpy
from numpy.typing import NDArray

from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.execute import library_of
from ddpsim.collectives.network.fluid import Network
from ddpsim.common.errors import InputError
from ddpsim.common.options.input_stage import Loader
from ddpsim.simulation.build import build_rank
from ddpsim.simulation.communication import Assumptions, Communication
from ddpsim.simulation.contention import OnBusy, Process, Processor, slow_messages
from ddpsim.simulation.graph import StepGraph
from ddpsim.simulation.jobs.beside import JobBeside
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.simulation.lanes import SharedNetwork
from ddpsim.simulation.resolve import ResolvedJob, SimulatedIterations, Workloads, resolve
from ddpsim.simulation.run import GraphRun, NodeTimes, Progress, report
from ddpsim.topology.graph import Placement
from ddpsim.trace.cycles import cycles
from ddpsim.workload import Workload

_Seconds = NDArray[np.float64]
"""One number, or several at once."""


@dataclass(frozen=True, slots=True)
class OtherJob:
    """The job that ran beside the one asked about.

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


def start(
    job: ResolvedJob,
    env: simpy.Environment,
    progress: Progress | None = None,
    on: SharedNetwork | None = None,
) -> JobRun:
    """Build what each simulated rank does and let it begin in `env`.

    Args:
        env: the simulation.
        progress: as that of `run_job`.
        on: a network that another job is on too; None is one of the job's own.
    """
    rank_configs = job.rank_configs
    shared = job.job.communication(env, rank_configs[0].scheduled(0), on)
    graph = StepGraph()
    for simulated, rank_config in zip(job.simulated_ranks, rank_configs, strict=True):
        build_rank(graph, rank_config, simulated.rank, len(shared.lanes))
    run = make_graph_run(job, shared, graph)
    if progress is not None:
        report(run, graph.ranks[0], progress)
    return JobRun(
        job.job, job.workload, job.kinds, job.simulated_ranks, rank_configs, job.extent,
        graph, run, run.times, shared,
    )  # fmt: skip


def make_graph_run(resolved: ResolvedJob, shared: Communication, graph: StepGraph) -> GraphRun:
    """Return a run of a graph that has yet to be run, each rank on its resources."""
    job, simulated_ranks, rank_configs = resolved.job, resolved.simulated_ranks, resolved.rank_configs
    env, apart = shared.env, shared.apart
    transfer = shared.transfer if job.options.comm == "real" else None
    run = GraphRun(env, graph, transfer, shared.collectives.streams_per_group)
    # Ranks, and devices, on the same lanes share one counter of who is busy: any one of them slows the messages.
    on_busy: dict[tuple[int, ...], OnBusy] = {}
    for simulated, rank_config, rank in zip(simulated_ranks, rank_configs, graph.ranks, strict=True):
        network, several = shared.collectives.network, len(rank.streams) > 1
        slowdown = shared.slowdown(rank_config.costs, rank_config.gpu, rank_config.workload.arithmetic_share)
        # A batch on a CPU is where it is computed: loading takes time, a copy none.
        stage = None if rank_config.execution.one_thread else rank_config.input_stage
        processors: list[Processor] = []
        for device in range(len(rank.streams)):
            used = tuple(number for number, nodes in enumerate(rank.lanes) if nodes)
            lanes = (device,) if several else used
            if lanes not in on_busy:
                on_busy[lanes] = shared.on_busy(lanes or None)
            # What a rank sends by itself is slowed by itself, and has no kind of hops, as a pattern has none.
            own = None if apart is None else slow_messages(apart.network, job.costs, {}, simulated.rank)
            tell = own or on_busy[lanes]
            processors.append(Processor(env, slowdown, tell, job.costs.copy_slowdown, rank_config.late_s))
        run.add(
            rank,
            processors,
            loader=None if rank_config.input_stage is None else Loader(rank_config.input_stage),
            copy=job.copy(stage, network, simulated.stands_for) if graph.copies else None,
            channel=None if apart is None else apart.connect(simulated.rank),
        )
    return run


def period_of(run: JobRun, extent: SimulatedIterations, end: Callable[[int], _Seconds]) -> _Seconds:
    """Return the period of the slowest rank: the median of its cycles' means, the mean where layers are left out.

    Args:
        extent: which iterations count.
        end: of a node; one number, or several at once.
    """
    dropped = any(run.job.options.drop.values())
    steps = run.job.options.periodic.get("steps", 1)
    periods_s = []
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
        # numpy's own median imports masked arrays, which takes longer than all medians of a command.
        ordered, count = np.sort(means, axis=0), len(means)
        median_s = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
        periods_s.append(np.mean(means, axis=0) if dropped else median_s)
    slowest: _Seconds = np.max(periods_s, axis=0)
    return slowest


def find_repeated_s(run: JobRun, extent: SimulatedIterations, end: Callable[[int], _Seconds]) -> list[_Seconds]:
    """Return by step how long its last micro-batch but one lasts on the slowest rank, for which all wait at the end."""
    steps = [cycles(rank.iterations[extent.begin : extent.end]) for rank in run.graph.ranks]
    return [
        np.max([end(each[-2].end) - end(each[-2].start) for each in of_ranks], axis=0)
        for of_ranks in zip(*steps, strict=True)
    ]


MOST_STEPS = 400
"""Steps of the other job at most, so that a command answers within 10 s; chosen by hand."""

MOST_GRADIENTS = 40_000
"""Gradients of all these steps at most; chosen by hand, as that."""

_ROOM = 1.3
"""Steps of the other job that are simulated over those that it would have made at its pace so far."""

_LEAST_SHARE = 0.05
"""Share of a job that has been run, at least, by which the number of its steps is guessed."""

_LEAST_S = 1e-6
"""Seconds of an iteration that computes nothing."""


@dataclass(frozen=True, slots=True)
class BesideRun:
    """The run of a job with another beside it.

    Attributes:
        other: the other job.
        placement: its nodes.
        calibration: of the machine; None is the priors.
        workloads: of the job asked about, where node templates name those of their own GPUs.
    """

    other: JobBeside
    placement: Placement
    calibration: Calibration | None
    workloads: Workloads

    def run(self, resolved: ResolvedJob, progress: Progress | None = None) -> JobRun:
        """Return the run of `resolved`, beside which the other job trains until it has ended.

        Raises:
            InputError: process groups of fewer ranks, whose links are not simulated apart; more steps of the other than
                `MOST_STEPS` and `MOST_GRADIENTS` allow.
        """
        _refuse_groups(resolved, "this job")
        other = self._job_of(1)
        own_s, other_s = _computing_s(resolved), _computing_s(other)
        steps = math.ceil(resolved.extent.total * own_s / other_s / self.other.job.period) + 2
        # How many steps the other makes is known only when both have run: it is given as many as it would make by
        # itself, and more, from the share that it lasted for, until it outlasts the job asked about.
        while True:
            most = min(MOST_STEPS, MOST_GRADIENTS // len(other.workload.parameters) // self.other.job.period)
            if steps > max(most, 1):
                what = f"the job beside makes more than {most} steps in {resolved.extent.total} of this one's"
                remedy = "ask for fewer `iterations`, or write a job whose step is longer"
                raise InputError(what, place="beside", remedy=remedy)
            outcome = self._run_together(resolved, self._job_of(steps), other_s, progress)
            if isinstance(outcome, JobRun):
                return outcome
            steps = math.ceil(steps * _ROOM / max(outcome, _LEAST_SHARE))

    def _job_of(self, steps: int) -> ResolvedJob:
        job, workload = self.other.job, self.other.workload
        options = Options(**{each.name: getattr(job, each.name) for each in fields(job)}, iterations=steps)
        assert isinstance(workload, Workload)
        library = library_of(self.placement, options.on(workload, self.placement.topology).backend_for(workload))
        same = self.calibration is not None and self.calibration.backend == library
        assumed, total = Assumptions(self.calibration if same else None), steps * options.period
        extent = SimulatedIterations(0, total, total)
        resolved = resolve({**self.workloads, None: workload}, self.placement, options, assumed, extent=extent)
        _refuse_groups(resolved, "the job beside it")
        return resolved

    def _run_together(
        self, own: ResolvedJob, other: ResolvedJob, other_s: float, progress: Progress | None
    ) -> JobRun | float:
        """Return the run of both; where the other has ended first, which share of the job asked about is done."""
        env = simpy.Environment()
        network = Network(env, {})
        started = start(own, env, progress, SharedNetwork(network, "own"))
        begun: list[JobRun] = []
        done, ended = started.run.done(), env.event()
        env.process(self._run_later(env, other, network, other_s, begun, ended))
        env.run(done | ended)
        if ended.triggered and not done.triggered:
            iterations = started.graph.ranks[0].iterations
            return sum(started.times.end[each.end] <= env.now for each in iterations) / len(iterations)
        if not begun:
            return started
        [seen] = begun
        end = seen.times.end
        steps = [end[each.end] - end[each.start] for each in seen.graph.ranks[0].iterations if end[each.end] <= env.now]
        step_s = median(steps[len(steps) // 2 :]) if steps else None
        return replace(started, beside=OtherJob(other.workload.name, self.placement, step_s))

    def _run_later(
        self,
        env: simpy.Environment,
        other: ResolvedJob,
        network: Network,
        other_s: float,
        begun: list[JobRun],
        ended: simpy.Event,
    ) -> Process:
        """Let the other job begin by its phase later, and trigger `ended` when it is over."""
        yield env.timeout(self.other.phase * other_s)
        begun.append(start(other, env, None, SharedNetwork(network, "other")))
        yield begun[0].run.done()
        ended.succeed()


def _refuse_groups(resolved: ResolvedJob, whose: str) -> None:
    schedule = resolved.schedule
    if schedule.groups:
        groups = ", ".join(schedule.groups)
        what = f"{whose} has process groups of fewer ranks ({groups}), whose links are not told apart"
        raise InputError(what, place="beside", remedy="use a scheme of one process group, as ddp or fsdp2")


def _computing_s(resolved: ResolvedJob) -> float:
    """Return what a rank of a job computes in an iteration, or its host spends: an iteration is as long at least."""
    pace = resolved.rank_configs[0].pace(0)
    return max(pace.work_s + pace.optimizer_work, pace.host_s + pace.optimizer_host, _LEAST_S)
