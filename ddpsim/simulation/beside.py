"""Two jobs on one fabric: both run in one simulation, and their messages share the links between switches.

The other job trains for as long as the one that is asked about: it is given steps until it outlasts that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from statistics import median

import simpy

from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.execute import library_of
from ddpsim.errors import InputError
from ddpsim.jobs.beside import JobBeside
from ddpsim.jobs.job import Job
from ddpsim.jobs.simulated import Options
from ddpsim.network.fluid import Network
from ddpsim.simulation.contention import Process
from ddpsim.simulation.job_run import JobRun, OtherJob, StartedJob, start
from ddpsim.simulation.resolve import ResolvedJob, resolve
from ddpsim.simulation.run import Progress
from ddpsim.topology import beside
from ddpsim.topology.graph import Placement
from ddpsim.workload import Workload

MOST_STEPS = 400
"""Steps of the other job at most, so that a command answers within 10 s; chosen by hand."""

MOST_GRADIENTS = 40_000
"""Gradients of all these steps at most; chosen by hand, as that."""

_ROOM = 1.3
"""Steps of the other job that are simulated over those that it would have made at its pace so far."""

_LEAST_SHARE = 0.05
"""Share of a job that has been run, at least, by which its other steps are foretold."""

_LEAST_S = 1e-6
"""Seconds of an iteration that computes nothing."""


def placed_beside(placement: Placement, other: JobBeside) -> tuple[Placement, Placement]:
    """Return where a job and the other one beside it are, both on one machine.

    Raises:
        TopologyError: as `ddpsim.topology.beside.placed_beside`.
    """
    return beside.placed_beside(placement, other.nodes, other.gpus_per_node, alternate=other.alternate)


def options_of(job: Job, iterations: int) -> Options:
    """Return the options that a simulation of `job` takes."""
    return Options(**{each.name: getattr(job, each.name) for each in fields(job)}, iterations=iterations)


@dataclass(frozen=True, slots=True)
class BesideRun:
    """The run of a job with another beside it.

    Attributes:
        other: the other job.
        placement: its nodes.
        calibration: of the machine; None is the priors.
        workloads: by name, those that node templates name for their own GPUs.
    """

    other: JobBeside
    placement: Placement
    calibration: Calibration | None
    workloads: dict[str, Workload]

    def run(self, resolved: ResolvedJob, progress: Progress | None = None) -> JobRun:
        """Return the run of `resolved`, beside which the other job trains until it has ended.

        Raises:
            InputError: process groups of fewer ranks, whose links are not told apart; more steps of the other than
                `MOST_STEPS` and `MOST_GRADIENTS` allow.
        """
        _refuse_groups(resolved, "this job")
        other = self._job_of(1)
        own_s, other_s = _computing_s(resolved), _computing_s(other)
        steps = math.ceil(resolved.extent.total * own_s / other_s / self.other.job.period) + 2
        while True:
            most = min(MOST_STEPS, MOST_GRADIENTS // len(other.workload.parameters) // self.other.job.period)
            if steps > max(most, 1):
                what = f"the job beside makes more than {most} steps in {resolved.extent.total} of this one's"
                remedy = "ask for fewer `iterations`, or write a job whose step is longer"
                raise InputError(what, place="beside", remedy=remedy)
            found = self._together(resolved, self._job_of(steps), other_s, progress)
            if isinstance(found, JobRun):
                return found
            steps = math.ceil(steps * _ROOM / max(found, _LEAST_SHARE))

    def _job_of(self, steps: int) -> ResolvedJob:
        options = options_of(self.other.job, steps)
        workload = self.other.workload
        assert isinstance(workload, Workload)
        library = library_of(self.placement, options.on(workload, self.placement.topology).backend_for(workload))
        same = self.calibration is not None and self.calibration.backend == library
        found = resolve(
            workload,
            self.placement,
            options,
            self.calibration if same else None,
            workloads=self.workloads,
            warm_up=0,
            whole=False,
        )
        _refuse_groups(found, "the job beside it")
        return found

    def _together(
        self, own: ResolvedJob, other: ResolvedJob, other_s: float, progress: Progress | None
    ) -> JobRun | float:
        """Return the run of both; where the other has ended first, which share of the job asked about is done."""
        env = simpy.Environment()
        network = Network(env, {})
        started = start(own, env, progress, network, "own")
        begun: list[StartedJob] = []
        done, ended = started.run.done(), env.event()
        env.process(self._later(env, other, network, other_s, begun, ended))
        env.run(done | ended)
        if ended.triggered and not done.triggered:
            iterations = started.graph.ranks[0].iterations
            return sum(started.run.times.end[each.end] <= env.now for each in iterations) / len(iterations)
        if not begun:
            return JobRun.of(own, started)
        [seen] = begun
        end = seen.run.times.end
        steps = [end[each.end] - end[each.start] for each in seen.graph.ranks[0].iterations if end[each.end] <= env.now]
        step_s = median(steps[len(steps) // 2 :]) if steps else None
        return JobRun.of(own, started, OtherJob(other.workload.name, self.placement, step_s))

    def _later(
        self,
        env: simpy.Environment,
        other: ResolvedJob,
        network: Network,
        other_s: float,
        begun: list[StartedJob],
        ended: simpy.Event,
    ) -> Process:
        """Let the other job begin by its phase later, and tell when it has ended."""
        yield env.timeout(self.other.phase * other_s)
        begun.append(start(other, env, None, network, "other"))
        yield begun[0].run.done()
        ended.succeed()


def _refuse_groups(resolved: ResolvedJob, whose: str) -> None:
    schedule = resolved.schedule
    if schedule is not None and schedule.groups:
        groups = ", ".join(schedule.groups)
        what = f"{whose} has process groups of fewer ranks ({groups}), whose links are not told apart"
        raise InputError(what, place="beside", remedy="use a scheme of one process group, as ddp or fsdp2")


def _computing_s(resolved: ResolvedJob) -> float:
    """Return what a rank of a job computes in an iteration, or its host spends: an iteration is as long at least."""
    pace = resolved.settings[0].pace(0)
    return max(pace.work_s + pace.optimizer_work, pace.host_s + pace.optimizer_host, _LEAST_S)
