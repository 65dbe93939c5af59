"""From a workload, a placement and options to a `Trace`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import simpy

from ddpsim.bucketing import BucketPlan
from ddpsim.collectives.calibration import Calibration
from ddpsim.jobs.simulated import Options
from ddpsim.schedules.schedule import Schedule
from ddpsim.simulation.beside import UNDISTURBED
from ddpsim.simulation.cohort import Cohort, make_rank
from ddpsim.simulation.costs import Costs
from ddpsim.simulation.draws import Draw, check_extent, draws_of, each_apart, kinds_of, settings_of
from ddpsim.simulation.inputs import InputFeed, alone_on
from ddpsim.simulation.kinds import Kind
from ddpsim.simulation.pace import paces
from ddpsim.simulation.plans import Plans
from ddpsim.simulation.processor import Processor
from ddpsim.simulation.rank import Progress
from ddpsim.simulation.rendezvous import SimulatedCommunicator
from ddpsim.simulation.torch_line import torch_line
from ddpsim.topology.graph import Placement
from ddpsim.trace.records import Iteration, Trace
from ddpsim.trace.spans import spans_of
from ddpsim.workload import Workload
from ddpsim.workload.gpus import gpu_of

WARM_UP = 3
"""Iterations simulated before those that count: the host's lead over the device settles in two."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Simulated(Trace):
    """A simulation leaves its trace, with the buckets of its last iteration.

    Attributes:
        schedule: that took the place of DDP's buckets; None where nothing did.
    """

    plan: BucketPlan
    schedule: Schedule | None = None


def simulate(
    workload: Workload,
    placement: Placement,
    options: Options,
    calibration: Calibration | None = None,
    *,
    workloads: dict[str, Workload] | None = None,
    wire_factor: Callable[[int], float] | None = None,
    every_rank: bool = False,
    progress: Progress | None = None,
    warm_up: int = WARM_UP,
    whole: bool = True,
    draws: Sequence[Draw] | None = None,
    planned: Plans | None = None,
) -> Simulated:
    """Simulate training and return the trace of rank 0 and of the first rank of every other kind.

    Args:
        workload: one rank's iteration without communication.
        placement: which ranks, where.
        options: of the run.
        calibration: constants of the transport and of DDP's own costs; None takes the documented priors.
        workloads: by name, those that node templates name for their own GPUs.
        wire_factor: factor on the time of a collective of some bytes: an end of a calibration's band.
        every_rank: simulate each rank as itself instead of one of each kind and the latest of the others; devices then
            do not spread.
        progress: called with the iterations done by the first rank, and how many there are.
        warm_up: iterations simulated before those that count; no fewer than `WARM_UP` where forward makes updates.
        whole: whether messages that the last iteration leaves in flight are seen to their end; they change no period.
        draws: who stands for which ranks, in place of what is drawn for each kind; see `ddpsim.simulation.replayed`.
        planned: buckets by iteration, in place of those of the options.

    Raises:
        InputError: a straggler beyond the world size, a template's workload that is not given or is another model's,
            options that do not fit the workload.
    """
    options.check(workload)
    backend = options.backend_for(workload)
    costs = Costs.of(backend, calibration, gpu_of(workload.gpu, workload.provenance))
    kinds = kinds_of(workload, placement, options, workloads or {}, costs)
    if every_rank or options.asynchronous:
        kinds = each_apart(kinds)
    cycle = options.period
    total = (warm_up + max(options.iterations_of(kind.workload) for kind in kinds)) * cycle
    check_extent(total, kinds)
    ending = (
        cycle if options.scheduled and whole else 0
    )  # what a schedule's last iteration leaves in flight needs one more
    world_size = placement.world_size
    drawn = draws or [draw for kind in kinds for draw in draws_of(kind, options, total + ending, world_size)]
    settings = settings_of(drawn, world_size, options, backend, calibration, total + ending, planned=planned)
    cohort = Cohort(placement, options, calibration, backend, costs, wire_factor, progress)
    if options.scheduled:
        settings = cohort.scheduled(settings)
        if warm_up < WARM_UP and settings[0].scheduled and not settings[0].scheduled.updates:
            return simulate(
                workload, placement, options, calibration, workloads=workloads, wire_factor=wire_factor,
                every_rank=every_rank, progress=progress, warm_up=WARM_UP, whole=whole, draws=draws, planned=planned,
            )  # fmt: skip
    records = cohort.run(drawn, settings)
    counted_gradients = {} if cohort.staleness is None else {"servers": cohort.staleness.document()}
    counted = [record for record in records if record.rank >= 0 and warm_up * cycle <= record.index < total]
    plan = settings[0].plan(total - 1)
    plan = replace(plan, call=torch_line(options, plan, [kind.workload for kind in kinds]))
    provenance = {
        "simulated": True,
        "seed": options.seed,
        "plan": plan.document(),
        "plan_fingerprint": plan.fingerprint(),
        "topology": placement.topology.name,
        "topology_fingerprint": placement.topology.fingerprint(),
        "workload": workload.name,
        **counted_gradients,
        "options": {
            "drop": dict(options.drop),
            "scheme": options.scheme,
            "overlap": options.overlap,
            **options.periodic,
        },
    }
    spans, scheduled = spans_of(counted, backend), settings[0].scheduled
    schedule = None if scheduled is None else scheduled.schedule
    return Simulated(placement.world_size, backend, counted, spans, provenance, plan=plan, schedule=schedule)


def simulate_local(
    workload: Workload,
    options: Options,
    progress: Progress | None = None,
    calibration: Calibration | None = None,
) -> list[Iteration]:
    """Return the iterations of one process without DDP, on its own; `progress` is as that of `simulate`.

    Args:
        calibration: says what adding gradients takes, where they are accumulated.
    """
    cycle = options.accumulate
    total = (WARM_UP + options.iterations_of(workload)) * cycle
    kind = Kind(range(1), workload, tuple(paces(workload, options.scale_compute, options.scale_host, options.scale)))
    check_extent(total, [kind])
    draws = list(draws_of(kind, options, total))
    [setting] = settings_of(draws, 1, options, options.backend_for(workload), calibration, total, ddp=False)
    env = simpy.Environment()
    processor = Processor(env, UNDISTURBED, lambda busy: None)
    rank = make_rank(env, 0, setting, processor, SimulatedCommunicator(env, None, 1, 1, processor))
    rank.progress = progress
    if (stage := setting.input_stage) is not None:
        rank.feed = InputFeed(env, stage, alone_on(env, stage, workload.gpu))
    env.run(env.process(rank.run()))
    return [record for record in rank.records if record.index >= WARM_UP * cycle]
