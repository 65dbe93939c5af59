"""From a workload, a placement and options to a `Trace`: `simulate`, by `run_job` and `trace_of`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import simpy

from ddpsim.bucketing import BucketPlan
from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.copies import copies_of
from ddpsim.collectives.network.fairness import alone_s
from ddpsim.common.options.input_stage import Loader
from ddpsim.schedules.schedule import Schedule
from ddpsim.simulation.build import build_rank
from ddpsim.simulation.communication import Assumptions
from ddpsim.simulation.contention import UNDISTURBED, Processor
from ddpsim.simulation.graph import Copy, StepGraph
from ddpsim.simulation.job_run import BesideRun, JobRun, OtherJob, find_repeated_s, start
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.simulation.jobs.stages import plan_in_model
from ddpsim.simulation.jobs.torch_line import torch_line
from ddpsim.simulation.record import critical_path, in_model, iterations_of
from ddpsim.simulation.resolve import (
    WARM_UP,
    ResolvedJob,
    SimulatedIterations,
    Workloads,
    resolve,
    resolve_alone,
)
from ddpsim.simulation.run import GraphRun, Progress, report
from ddpsim.topology.beside import place_beside
from ddpsim.topology.graph import Placement
from ddpsim.topology.hardware import PCIE_X16_BANDWIDTH, gpu_facts
from ddpsim.trace.cycles import cycles
from ddpsim.trace.records import Iteration, PathSpan, Trace, spans_of
from ddpsim.workload import Workload

_GENERATION = 3
"""PCIe generation of a GPU of which nothing is known: the oldest still in use, whose copies take longest."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Simulated(Trace):
    """A simulation leaves its trace, with the buckets of its last iteration.

    Attributes:
        schedule: what rank 0 sent in the first iteration.
        beside: another job that ran with it; None where none did.
    """

    plan: BucketPlan
    schedule: Schedule
    beside: OtherJob | None = None


def simulate(
    workload: Workload,
    placement: Placement,
    options: Options,
    calibration: Calibration | None = None,
    *,
    extent: SimulatedIterations | None = None,
) -> Simulated:
    """Simulate training and return the trace of rank 0 and of the first rank of every other kind.

    Args:
        workload, placement, options, extent: as those of `resolve`.
        calibration: constants of the transport and of DDP's own costs; None takes the documented priors.
    """
    return trace_of(run_job(workload, placement, options, Assumptions(calibration), extent=extent))


def run_job(
    workload: Workload | Workloads,
    placement: Placement,
    options: Options,
    assumed: Assumptions | None = None,
    *,
    extent: SimulatedIterations | None = None,
    progress: Progress | None = None,
) -> JobRun:
    """Simulate training and return the run.

    Args:
        workload, placement, options, assumed, extent: as those of `resolve`.
        progress: called with the iterations done by the first rank, and how many there are.

    Raises:
        InputError, CalibrationError, PlanError: as `resolve`.
    """
    assumed, other = assumed or Assumptions(), options.beside
    resolved = resolve(workload, placement, options, assumed, extent=extent)
    if other is None or other.idle or resolved.job.options.comm != "real":
        return run_resolved(resolved, progress)
    _, others = place_beside(assumed.on(placement), other.nodes, other.gpus_per_node, alternate=other.alternate)
    workloads: Workloads = {None: workload} if isinstance(workload, Workload) else workload
    return BesideRun(other, others, assumed.calibration, workloads).run(resolved, progress)


def run_resolved(resolved: ResolvedJob, progress: Progress | None = None) -> JobRun:
    """Return the run of a job that is resolved already; `progress` is as that of `run_job`."""
    ran = start(resolved, simpy.Environment(), progress)
    ran.run.run()
    return ran


def trace_of(ran: JobRun, *, path: bool = False) -> Simulated:
    """Return the trace of a run, of rank 0 and of the first rank of every other kind.

    Args:
        path: whether to find what the iterations wait for.
    """
    job, graph, times, extent = ran.job, ran.graph, ran.times, ran.extent
    options, placement, backend = job.options, job.placement, job.backend
    ranks = [rank for rank in graph.ranks if rank.number >= 0]
    parts = {one.rank: config.part for one, config in zip(ran.simulated_ranks, ran.rank_configs, strict=True)}
    # A rank of a pipeline numbers the parameters of its part; a trace has those of the model.
    records = [
        record if (part := parts[rank.number]).size == 1 else in_model(record, part.indices)
        for rank in ranks
        for record in iterations_of(graph, rank, times)
    ]
    counted = [record for record in records if extent.begin <= record.index < extent.end]
    if extent.repeats:
        counted = list(_repeat(ran, counted))
    plan = plan_of(ran)
    provenance = _provenance(ran.workload, placement, options, plan)
    if ran.shared.apart is not None:
        provenance |= ran.shared.apart.remarks()
    # Without communication no rank waits for another, and the step is the slowest one's: the path is sought there.
    own_ways = ranks if options.comm != "real" else graph.ranks[:1]
    waited_for: Sequence[PathSpan] = ()
    if path:
        ways = (rank.iterations[extent.begin : extent.end] for rank in own_ways)
        ends = [(each[0].start, each[-1].end) for each in ways]
        first, last = max(ends, key=lambda pair: times.end[pair[1]] - times.end[pair[0]])
        waited_for = critical_path(graph, times, first, last, ran.shared.shares)
    spans = spans_of(counted, backend)
    size, schedule, beside = placement.world_size, ran.schedule, ran.beside
    return Simulated(size, backend, counted, spans, provenance, waited_for, plan=plan, schedule=schedule, beside=beside)


def _repeat(ran: JobRun, counted: Sequence[Iteration]) -> Iterator[Iteration]:
    """Yield iterations with those that the last but one of each step stands for; the last waits for the slowest."""
    slowest_s = find_repeated_s(ran, ran.extent, lambda node: np.array(ran.times.end[node]))
    for number, step in enumerate(cycles(counted)):
        *before, one, last = step
        more_s = ran.extent.repeats * (float(slowest_s[number % len(slowest_s)]) - one.iteration_s)
        yield from (*before, *[one] * (1 + ran.extent.repeats))
        yield replace(last, end_s=last.end_s + more_s, exposed_comm_s=last.exposed_comm_s + more_s)


def plan_of(ran: ResolvedJob) -> BucketPlan:
    """Return the buckets of the last iteration that counts, with the line of torch's that makes them.

    Of a model in parts they are those of all of them, the first one's first.
    """
    options, plans = ran.job.options, {each.part: each.plans.plan(ran.extent.end - 1) for each in ran.rank_configs}
    first = plans[ran.rank_configs[0].part]
    plan = first if len(plans) == 1 else plan_in_model(plans, ran.workload.parameters)
    call = torch_line(options, first, [kind.workload for kind in ran.kinds if kind.place == 0])
    if (shared := options.ranks_a_copy) > 1 and call.caps is not None:
        parts = f"of a rank's part of the model, process_group: one rank in {shared}"
        call = replace(call, note="; ".join(filter(None, [parts, call.note])))
    if (experts := options.expert_parallel) > 1 and plan.call.caps is not None:
        parts = f"of all but experts; theirs by another, process_group: one rank in {experts}"
        call = replace(plan.call, note=parts)
    return replace(plan, call=call)


def _provenance(workload: Workload, placement: Placement, options: Options, plan: BucketPlan) -> dict[str, Any]:
    """Return what a trace says of the run that left it."""
    return {
        "simulated": True,
        "seed": options.seed,
        "plan": plan.document(),
        "plan_fingerprint": plan.fingerprint(),
        "topology": placement.topology.name,
        "topology_fingerprint": placement.topology.fingerprint(),
        "compute_device": placement.topology.compute_device,
        "workload": workload.name,
        "options": {
            "drop": dict(options.drop),
            "scheme": options.scheme,
            "overlap": options.overlap,
            **options.periodic,
        },
    }


def simulate_local(
    workload: Workload,
    options: Options,
    progress: Progress | None = None,
    calibration: Calibration | None = None,
    placement: Placement | None = None,
) -> list[Iteration]:
    """Return the iterations of one process without DDP, on its own; `progress` is as that of `simulate`.

    Args:
        calibration: says what adding gradients takes, where they are accumulated.
        placement: of the machine, over whose links a rank of several devices copies what passes between them.
    """
    cycle = options.accumulate
    rank_config = resolve_alone(workload, options, calibration, (WARM_UP + options.iterations_of(workload)) * cycle)
    env, graph = simpy.Environment(), StepGraph()
    build_rank(graph, rank_config, 0, 1)
    [rank] = graph.ranks
    run, stage = GraphRun(env, graph, None, 1), rank_config.input_stage
    loader = None if stage is None else Loader(stage)
    # A slot of sixteen lanes, that the workload's GPU has to itself.
    facts = None if workload.gpu is None else gpu_facts(workload.gpu)
    slot_Bps = PCIE_X16_BANDWIDTH[_GENERATION if facts is None else facts.pcie]  # noqa: N806
    batch_s = 0.0 if stage is None else stage.copy_bytes / min(slot_Bps, stage.limit_Bps)

    def copy(copied: Copy) -> simpy.Event:
        if copied.source is None:
            return env.timeout(batch_s)
        # On a machine that is not known, the GPUs of a rank are in slots of their own.
        if placement is None:
            return env.timeout(copied.size_bytes / slot_Bps)
        return env.timeout(alone_s(*copies_of(placement, (0,), copied.size_bytes, (copied.source, copied.target))))

    processors = [Processor(env, UNDISTURBED, lambda busy: None) for _ in rank.streams]
    run.add(rank, processors, loader=loader, copy=copy)
    if progress is not None:
        report(run, rank, progress)
    return [record for record in iterations_of(graph, rank, run.run()) if record.index >= WARM_UP * cycle]
