"""Explain a traced run: read its ranks, align them, split their collectives, name who is late, predict and advise."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median

from ddpsim.collectives.conditions import Backend
from ddpsim.errors import InputError, TraceError
from ddpsim.explaining.advice import advice_of
from ddpsim.explaining.bound import shares_of
from ddpsim.explaining.bucket_origin import bucket_origin
from ddpsim.explaining.clocks import align_ranks
from ddpsim.explaining.explanation import Explanation, TracedStep
from ddpsim.explaining.files import Ranks, read_ranks
from ddpsim.explaining.foretold import PredictedBreakdown, foretell
from ddpsim.explaining.given import RunFacts
from ddpsim.explaining.late import excess_s, explain_unknown, explain_unsure, late_rank
from ddpsim.explaining.links import find_slow_link
from ddpsim.explaining.machine import TracedMachine, machine_of
from ddpsim.explaining.machine_check import count_node_gpus
from ddpsim.explaining.recorder import read_recorder
from ddpsim.explaining.seen import PARTS, UNPREDICTED, SeenRank
from ddpsim.explaining.splits import MedianSplit, splits_of
from ddpsim.trace.metrics import quantile
from ddpsim.workers.crew import WorkerPool
from ddpsim.workload import Workload


def explain(
    traces: str | Path,
    given: RunFacts | None = None,
    *,
    shapes: Workload | None = None,
    crew: WorkerPool | None = None,
    predict: bool = True,
) -> Explanation:
    """Explain the run whose rank traces lie at `traces`.

    Args:
        traces: a folder, or one rank's file.
        given: what else is known.
        shapes: the workload that `given.shapes` names.
        crew: processes that read the traces; None is this one.
        predict: whether to predict the traced configuration and to advise on its buckets.

    Raises:
        InputError: nothing that can be read, traces of different runs, or what is given contradicts them.
    """
    given = given or RunFacts()
    untraced_s = given.untraced_s
    if given.nccl_tests is not None and given.topology is None and given.topo is None:
        remedy = "say whose table it is: add `topology` or `topo`"
        raise InputError("a table without its machine", place="nccl_tests", remedy=remedy)
    ranks = read_ranks(traces, shapes, crew)
    seen, alignment = align_ranks(ranks.ranks)
    splits = splits_of(seen, ranks.world_size)
    traced = traced_step(seen)
    notes = [*ranks.notes, *(f"rank {rank.rank}: {note}" for rank in seen for note in rank.notes)]
    lead = seen[0]
    machine = _machine(given, ranks, lead, splits, notes) if predict else None
    late = late_rank(seen)
    foretold = _predict_breakdown(lead, machine, traced, notes, advise=late is None)
    link = find_slow_link(seen, machine, backend_of(lead), traced.step_s, agreed=alignment.agreed)
    recorded = None if given.flight_recorder is None else read_recorder(given.flight_recorder)
    if recorded is not None:
        notes += recorded.notes
    basis = lead.made_by
    found = Explanation(
        ranks=ranks,
        alignment=alignment,
        traced=traced,
        shares=shares_of(lead, seen, late),
        splits=splits,
        late=late,
        link=link,
        excess_s=excess_s(seen),
        foretold=foretold,
        recorded=recorded,
        untraced_s=untraced_s,
        advice=(),
        notes=tuple(notes),
        buckets="" if basis is None else bucket_origin(basis),
        late_untold=explain_unknown(seen),
        late_unsure=None if late is not None else explain_unsure(seen),
    )
    return advice_of(found)


def backend_of(rank: SeenRank) -> Backend:
    """Return whose collectives the rank's are."""
    if rank.backend == "mpi":
        return "mpi"
    return "gloo" if rank.backend == "gloo" or rank.device == "cpu" else "nccl"


def traced_step(ranks: Sequence[SeenRank]) -> TracedStep:
    """Return the usual step: the median period of the slowest rank, with the parts of the first.

    Raises:
        TraceError: steps that take no time.
    """
    periods: dict[int, list[float]] = {}
    for rank in ranks:
        counted = [step.step_s for step in rank.steps if step.counts] or [step.step_s for step in rank.steps]
        periods[rank.rank or 0] = counted
    slowest = max(periods.values(), key=median)
    step_s = median(slowest)
    if not step_s > 0:
        what = f"its steps take {step_s:g} s"
        raise TraceError(what, place=ranks[0].place, remedy="record whole steps, the profiler's step() after each")
    first = ranks[0]
    steps = [step for step in first.steps if step.counts] or list(first.steps)
    ordered = sorted(steps, key=lambda step: step.step_s)
    cut = len(ordered) // 4
    middle = ordered[cut : len(ordered) - cut]
    others = sorted({part for step in middle for part in step.parts} - {*PARTS})
    parts = {part: fmean(step.parts.get(part, 0.0) for step in middle) for part in (*PARTS, *others)}
    scale = step_s / total if (total := sum(parts.values())) > 0 else 1.0
    return TracedStep(
        step_s,
        min(step_s, quantile(slowest, 0.1)),
        max(step_s, quantile(slowest, 0.9)),
        {part: seconds * scale for part, seconds in parts.items()},
        len(slowest),
        first.rank or 0,
    )


def _machine(
    given: RunFacts, ranks: Ranks, lead: SeenRank, splits: Sequence[MedianSplit], notes: list[str]
) -> TracedMachine | None:
    backend = backend_of(lead)
    try:
        seen = count_node_gpus(ranks.ranks)
        machine = machine_of(ranks.world_size, lead.device, splits, backend, given, seen)
    except InputError as error:
        if any((given.topology, given.topo, given.nccl_tests)):
            raise
        notes.append(f"{UNPREDICTED}{error}")
        return None
    if machine.assumed:
        notes.append(machine.assumed)
    notes += machine.notes
    return machine


def _predict_breakdown(
    lead: SeenRank, machine: TracedMachine | None, traced: TracedStep, notes: list[str], *, advise: bool
) -> PredictedBreakdown | None:
    if machine is None or lead.made_by is None:
        return None
    backend = backend_of(lead)
    try:
        return foretell(lead.made_by, machine, traced.step_s, traced.parts, backend, advise=advise)
    except InputError as error:
        notes.append(f"{UNPREDICTED}{error}")
        return None
