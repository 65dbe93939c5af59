"""The simulation that a prediction rests on: what is replayed, where, and for how many iterations.

Start at `SimulatedRun.of`, which makes it of a job, and `SimulatedRun.short`, whose iterations the prediction is of.
The period is the question, not the trace: `shorten_run` cuts the run to the iterations that tell it, and `is_settled`
says whether they did. What a run is, from ranks to events, is the room `ddpsim.simulation` (`run_job` there).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from ddpsim.bucketing import BucketCaps, BucketPlan
from ddpsim.collectives.calibration import Calibration
from ddpsim.common.errors import InputError
from ddpsim.prediction.memory import Memory, capacity_bytes
from ddpsim.prediction.models import Model
from ddpsim.schedules.named import scheme_named
from ddpsim.schedules.schedule import Schedule
from ddpsim.simulation.communication import Assumptions
from ddpsim.simulation.engine import Simulated, plan_of, run_job, run_resolved, trace_of
from ddpsim.simulation.job import Job
from ddpsim.simulation.job_run import JobRun, period_of
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.simulation.resolve import ResolvedJob, SimulatedIterations, Workloads, with_buckets
from ddpsim.simulation.run import Progress
from ddpsim.simulation.scheduling import schedule_of, schedule_of_buckets
from ddpsim.topology.graph import Cluster, Placement
from ddpsim.workload import Workload
from ddpsim.workload.files import load_workload
from ddpsim.workload.replayed import single_clock, spread_out, with_optimizer

if TYPE_CHECKING:
    from ddpsim.simulation.retiming.dependencies import Dependencies

LONGEST, _OF_LONGER = 128, 8
"""A step of up to `LONGEST` micro-batches is simulated whole; of a longer one `_OF_LONGER`, where they are alike."""

_SETTLED = 2
"""Iterations after which those that are all alike mostly repeat: the host's lead over the device settles in two."""

SAME = 1e-9
"""Share of a period by which two are the same: sums of times are rounded."""


@dataclass(slots=True)
class SimulatedRun:
    """The runs of a job: a short one whose period is the prediction's, and a whole one for its trace.

    Each is simulated when first needed, and cached. Neither is pickled: a run is deterministic, and can be made again.

    Attributes:
        workload: as the machine's nodes replay it.
        placement: the ranks that take part, and where.
        options: of the job, with the backend in force.
        calibration: constants in force; None is the priors.
        order: dependencies of the nodes of `short`, cached by `ddpsim.prediction.periods`.
    """

    workload: Workload
    placement: Placement
    options: Options
    calibration: Calibration | None = field(default=None, compare=False)
    _trace: Simulated | None = field(init=False, compare=False, default=None)
    _ran: JobRun | None = field(init=False, compare=False, default=None)
    order: Dependencies | None = field(init=False, compare=False, default=None)
    _batches: tuple[int, ...] | None = field(init=False, compare=False, default=None)
    _same_job: SimulatedRun | None = field(init=False, compare=False, default=None)
    _periods: dict[tuple[tuple[int, ...], ...], float] = field(init=False, compare=False, default_factory=dict)

    def __repr__(self) -> str:
        return f"<SimulatedRun: {self.workload.name}, {self.placement!r}>"

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return SimulatedRun, (self.workload, self.placement, self.options, self.calibration)

    @classmethod
    def of(cls, job: Job) -> SimulatedRun:
        """Return the run of a job.

        Raises:
            InputError: as `place`, and for a CPU's workload on GPUs.
        """
        topology, options = job.topology, job.options
        placement, replayed = job.placement, replay_on(topology, job.workload, options)
        if (other := options.beside) is not None:
            # The other job is put on the machine's GPUs too.
            own = Options(backend=other.job.backend)
            paced = replay_on(topology, Model.of(other.workload, own).on(topology, options=own), own)
            options = replace(options, beside=replace(other, workload=paced))
        return cls(replayed, placement, options.on(replayed, topology), job.calibration)

    @property
    def batches(self) -> tuple[int, ...]:
        """Samples of an iteration by rank that trains, the first ranks: a batch of its node's own workload."""
        if self._batches is None:
            per_node, by_node, replayed = self.placement.gpus_per_node, dict[int, int](), self.workloads
            for each in self.placement.classes:
                by_node |= dict.fromkeys(each.node_indices, replayed[each.template.workload].batch_size)
            trainers = scheme_named(self.options.scheme).trainers(self.placement.world_size, per_node)
            self._batches = tuple(by_node[rank // per_node] for rank in range(trainers))
        return self._batches

    def short(self, progress: Progress | None = None) -> JobRun:
        """Return the run of no more iterations than tell the period, with its graph.

        Args:
            progress: as that of `simulate`; called where it is not simulated yet.

        Raises:
            InputError: as `simulate`.
        """
        if self._ran is None:
            resolved = self._resolve_from_same_job()
            if resolved is not None:
                ran = run_resolved(resolved, progress)
            else:
                options, extent = shorten_run(self.options, self.workload)
                ran = self.under(options, extent=extent, progress=progress)
            # What has not settled is run as long as its trace is, so that the two have one period.
            self._ran = ran if is_settled(ran) else self.under(self.options, progress=progress)
        return self._ran

    def trace(self) -> Simulated:
        """Return the trace of the whole run."""
        if self._trace is None:
            self._trace = trace_of(self.under(self.options), path=True)
        return self._trace

    def without_beside(self) -> SimulatedRun:
        """Return the run of the same job while that beside it does nothing."""
        other = self.options.beside
        idle = None if other is None else replace(other, idle=True)
        return SimulatedRun(self.workload, self.placement, replace(self.options, beside=idle), self.calibration)

    def with_buckets(self, caps: BucketCaps, plan: BucketPlan | None = None) -> SimulatedRun:
        """Return the run of the same job with other buckets.

        It shares what `resolve` found for this one, but for what depends on buckets, and the periods of buckets that
        were simulated.
        """
        other = replace(self, options=replace(self.options, caps=caps, plan=plan))
        # All are made from the first run, whose job was resolved in full.
        other._same_job, other._periods = self._same_job or self, self._periods
        return other

    def plan_and_period(self, progress: Progress | None = None) -> tuple[BucketPlan, float]:
        """Return its buckets and its period in seconds.

        Different caps often make the same buckets: of those runs of one job one is simulated.
        """
        if (resolved := self._resolve_from_same_job()) is None:
            ran = self.short(progress)
            return plan_of(ran), simulated_period_s(ran)
        plan = plan_of(resolved)
        groups = tuple(plan.groups())
        if groups not in self._periods:
            self._periods[groups] = simulated_period_s(self.short(progress))
        return plan, self._periods[groups]

    def _resolve_from_same_job(self) -> ResolvedJob | None:
        """Return the resolved job, made of that of the run whose `with_buckets` made this one; None without one.

        None too where more than buckets would be another, as a schedule of messages.
        """
        other = None if self._same_job is None else self._same_job.short()
        return None if other is None else with_buckets(other, self.options.caps, self.options.plan)

    def schedule(self) -> Schedule:
        """Return what rank 0 sends in the first iteration; found without a simulation.

        Raises:
            PlanError: a schedule that cannot be carried out.
        """
        if self._ran is not None:
            return self._ran.schedule
        first = self.workloads[self.placement.class_of(0).template.workload]
        options, backend = self.options, self.options.backend_for(self.workload)
        if not options.fixed_schedule:
            return schedule_of_buckets(options, first.parameters, options.bucket_plan(first).groups())
        part = options.parts(first)[0]
        plan = options.bucket_plan(part.workload, part.indices)
        return schedule_of(options, part.workload, plan, self.placement, backend, self.calibration)

    def memory(self, plan: BucketPlan | None = None) -> Memory | None:
        """Return what the rank that needs most needs of its GPU's memory; None on a CPU, which is not judged.

        Args:
            plan: buckets in force; None is those of the options.

        Raises:
            PlanError: as `schedule`.
        """
        topology, workload, options = self.placement.topology, self.workload, self.options
        if workload.one_clock or topology.compute_device == "cpu":
            return None
        models = [gpu.model for each in self.placement.classes for gpu in each.template.gpus]
        known = capacity_bytes(workload, models)
        capacity = known if options.memory_limit_bytes is None else options.memory_limit_bytes
        parts, schedule = options.parts(workload), self.schedule()
        if plan is None or len(parts) > 1:
            plans = [options.bucket_plan(part.workload, part.indices) for part in parts]
        else:
            plans = [plan]
        # The rank that needs most: the first stage keeps the activations of the most micro-batches.
        each_of = [
            Memory.of(part.workload, own, options.accumulated, capacity, schedule, number)
            for part, own in zip(parts, plans, strict=True)
            for number in range(len(workload.device_shares))
        ]
        return max(each_of, key=lambda memory: memory.step_bytes)

    def under(
        self,
        options: Options,
        assumed: Assumptions | None = None,
        *,
        extent: SimulatedIterations | None = None,
        progress: Progress | None = None,
    ) -> JobRun:
        """Return another run of the same ranks, with other options or under other assumptions.

        Args:
            assumed: factors on what links, transport, host and DDP's own work cost; None leaves all as they are.
            extent, progress: as those of `run_job`.
        """
        assumed = assumed or Assumptions(self.calibration)
        return run_job(self.workloads, self.placement, options, assumed, extent=extent, progress=progress)

    @property
    def workloads(self) -> Workloads:
        """What its ranks replay."""
        topology = self.placement.topology
        named = sorted({c.template.workload for c in self.placement.classes if c.template.workload is not None})
        workloads: dict[str | None, Workload] = {None: self.workload}
        return workloads | {name: replay_on(topology, load_workload(name), self.options) for name in named}


def simulated_period_s(ran: JobRun, extent: SimulatedIterations | None = None) -> float:
    """Return the period of a run in seconds over the iterations of `extent`; None are those that the run counts."""
    end = ran.times.end
    return float(period_of(ran, extent or ran.extent, lambda node: np.array(end[node])))


def is_settled(ran: JobRun) -> bool:
    """Whether the one period that counts is as long as the one before it; a mean of several counts as settled."""
    extent, period = ran.extent, ran.job.options.period
    if extent.repeats or extent.end - extent.begin > period:
        return True
    before_s = simulated_period_s(ran, replace(extent, begin=extent.begin - period, end=extent.begin))
    return abs(simulated_period_s(ran) - before_s) <= SAME * before_s


def shorten_run(options: Options, workload: Workload) -> tuple[Options, SimulatedIterations | None]:
    """Return options and the fewest iterations from which the period is known; None stands for all iterations.

    Of iterations that are all alike one period is enough, once the run has settled. Where a loader works ahead, the
    batches that it loaded before the first iteration must be used up first, and all iterations are simulated.
    """
    brief, repeats = leave_out_repeated(options, workload)
    if _are_alike(options, workload):
        # Nothing is drawn, so that every settled iteration repeats the last: one counts.
        return brief, SimulatedIterations.of(brief, 1, _SETTLED, repeats)
    if repeats:
        return brief, SimulatedIterations.of(brief, options.iterations_of(workload), repeats=repeats)
    return options, None


def leave_out_repeated(options: Options, workload: Workload) -> tuple[Options, int]:
    """Return options of a step of fewer micro-batches, and how many were left out.

    The first micro-batch follows an optimizer's step and the last reduces gradients; those between are alike, so that
    the last but one of the shorter step stands for each that was left out.
    """
    left_out = options.accumulate - _OF_LONGER
    one = replace(options, iterations=None)
    if options.accumulate <= LONGEST or options.period != options.accumulate or not _are_alike(one, workload):
        return options, 0
    return replace(options, accumulate=_OF_LONGER), left_out


def _are_alike(options: Options, workload: Workload) -> bool:
    """Whether all iterations are: nothing is drawn or recorded several times, rebuilt, or loaded ahead."""
    ahead = options.input_stage != "none"
    return options.iterations is None and options.order is None and options.iterations_of(workload) == 2 and not ahead


def replay_on(topology: Cluster, workload: Workload, options: Options) -> Workload:
    """Return `workload` as a topology's nodes replay it: with the optimizer asked for, by timed layers without GPUs.

    Raises:
        InputError: a CPU's on nodes with GPUs, without a backend: it has no pace that a GPU could keep.
    """
    if options.optimizer is not None or options.clip_gradients:
        workload = with_optimizer(workload, options.optimizer, clipping=options.clip_gradients)
    if options.compiled:
        workload = spread_out(workload)
    if topology.compute_device == "cpu":
        return workload if workload.on_cpu else single_clock(workload)
    if workload.on_cpu and options.backend is None:
        raise InputError(
            f"{workload.name} was recorded on a CPU, {topology.name} has GPUs ({topology.compute_device})",
            place="workload",
            remedy=(
                "estimate the step on that GPU (`python -m ddpexec estimate --step ... --gpu ...`), carry a capture "
                "to it (`... --from capture.json --gpu ...`), or say `backend=gloo` to train on its CPUs"
            ),
        )
    return workload
