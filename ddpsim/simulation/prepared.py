"""A job before it runs: who is simulated, with what, on which resources; and its start in a simulation."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import simpy

from ddpsim.collectives.calibration import Calibration
from ddpsim.jobs.simulated import Options
from ddpsim.network.fluid import Network
from ddpsim.options.input_stage import Loader
from ddpsim.schedules.schedule import Schedule
from ddpsim.simulation.build import build_rank
from ddpsim.simulation.communication import Communication, JobResources
from ddpsim.simulation.costs import Costs
from ddpsim.simulation.graph import StepGraph
from ddpsim.simulation.job_run import JobRun, SimulatedIterations
from ddpsim.simulation.plans import Plans
from ddpsim.simulation.representatives import (
    RankKind,
    SimulatedRank,
    check_extent,
    draws_of,
    each_apart,
    kinds_of,
    settings_of,
)
from ddpsim.simulation.run import GraphRun, Progress, report
from ddpsim.simulation.scheduling import carrying_out, schedule_of
from ddpsim.simulation.setting import RankConfiguration
from ddpsim.topology.graph import Placement
from ddpsim.workload import Workload
from ddpsim.workload.gpus import gpu_of


@dataclass(frozen=True, slots=True, eq=False)
class StartedJob:
    """A job whose ranks have begun in a simulation that has not been run yet."""

    graph: StepGraph
    run: GraphRun
    shared: Communication


@dataclass(frozen=True, slots=True, eq=False)
class PreparedJob:
    """A job that is ready to run; the attributes are those of `JobRun`."""

    job: JobResources
    workload: Workload
    kinds: Sequence[RankKind]
    draws: Sequence[SimulatedRank]
    settings: Sequence[RankConfiguration]
    schedule: Schedule | None
    extent: SimulatedIterations

    @classmethod
    def of(
        cls,
        workload: Workload,
        placement: Placement,
        options: Options,
        calibration: Calibration | None,
        *,
        workloads: dict[str, Workload] | None,
        wire_factor: Callable[[int], float] | None = None,
        every_rank: bool = False,
        warm_up: int,
        whole: bool,
        draws: Sequence[SimulatedRank] | None = None,
        planned: Plans | None = None,
    ) -> PreparedJob:
        """Return the job, ready to run; arguments and errors are those of `ddpsim.simulation.engine.run_job`."""
        options.check(workload)
        options = options.on(workload, placement.topology)
        backend = options.backend_for(workload)
        costs = Costs.of(backend, calibration, gpu_of(workload.gpu, workload.provenance))
        kinds = kinds_of(workload, placement, options, workloads or {}, costs)
        if every_rank or options.asynchronous:
            kinds = each_apart(kinds)
        schedule = None
        if options.scheduled:
            first = kinds[0].workload
            plan = options.bucket_plan(first) if planned is None else planned.plan(0)
            schedule = schedule_of(options, first, plan, placement, backend, calibration)
        iterations = max(options.iterations_of(kind.workload) for kind in kinds)
        extent = SimulatedIterations.of(options, iterations, warm_up, schedule, whole=whole)
        check_extent(extent.end, kinds)
        ranks, total = placement.world_size, extent.total
        drawn = draws or [draw for kind in kinds for draw in draws_of(kind, options, total, ranks)]
        settings = settings_of(drawn, ranks, options, backend, calibration, total, planned=planned)
        if schedule is not None:
            settings = carrying_out(schedule, settings, ranks, backend)
        job = JobResources(placement, options, calibration, backend, costs, wire_factor)
        return cls(job, workload, kinds, drawn, settings, schedule, extent)

    def run(self, progress: Progress | None = None) -> JobRun:
        """Return the job as it runs by itself; `progress` is as that of `run_job`."""
        started = self.started(simpy.Environment(), progress)
        started.run.run()
        return self.ran(started)

    def ran(self, started: StartedJob) -> JobRun:
        """Return the run of the job, which has started and ended."""
        return JobRun(
            self.job, self.workload, self.kinds, self.draws, self.settings, self.schedule, self.extent,
            started.graph, started.run.times, started.shared,
        )  # fmt: skip

    def started(
        self,
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
        job, settings, options = self.job, self.settings, self.job.options
        shared = job.communication(env, settings[0].scheduled, network, sender)
        if options.comm == "real":
            sizes = [bucket.size_bytes for bucket in settings[0].plan(self.extent.total - 1).buckets]
            shared.collectives.check_extent(sizes, self.extent.total // options.sync_every)
        lanes = options.process_groups if shared.lanes is None else len(shared.lanes.groups)
        graph = StepGraph()
        for draw, setting in zip(self.draws, settings, strict=True):
            build_rank(graph, setting, draw.rank, lanes)
        late_s = [setting.late_s for setting in settings]
        run = on_resources(job, shared, graph, self.draws, settings, [setting.costs for setting in settings], late_s)
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
            job.processor(shared, setting.workload, own, on_busy),
            late_s=late,
            loader=None if setting.input_stage is None else Loader(setting.input_stage),
            copy=job.copy(env, setting, shared.collectives.network, draw.stands_for),
            channel=None if links is None else links.attendance(draw.rank),
        )
    return run
