"""Explain a traced run: read its ranks, align them, split their collectives, name who is late, predict and advise."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ddpsim.collectives.conditions import Backend
from ddpsim.common.errors import InputError, TraceError
from ddpsim.common.workers.crew import WorkerPool
from ddpsim.explaining.bound import shares_of
from ddpsim.explaining.bucket_origin import bucket_origin
from ddpsim.explaining.clocks import align_ranks
from ddpsim.explaining.explanation import Explanation
from ddpsim.explaining.files import Ranks, read_ranks
from ddpsim.explaining.foretold import PredictedBreakdown, foretell
from ddpsim.explaining.given import RunFacts
from ddpsim.explaining.late import excess_s, explain_unknown, explain_unsure, late_rank
from ddpsim.explaining.links import find_slow_link
from ddpsim.explaining.machine import TracedMachine, count_node_gpus, machine_of
from ddpsim.explaining.ranks import UNPREDICTED, TracedRank, traced_parts
from ddpsim.explaining.recorder import read_recorder
from ddpsim.explaining.splits import CollectiveSummary, splits_of, wire_times
from ddpsim.trace.metrics import Summary, summarise
from ddpsim.trace.records import Trace
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
    splits = splits_of(seen)
    traced = summarise_ranks(seen)
    notes = [*ranks.notes, *(f"rank {rank.rank}: {note}" for rank in seen for note in rank.notes)]
    lead = seen[0]
    machine = _machine(given, ranks, lead, splits, notes) if predict else None
    late = late_rank(seen)
    foretold = _predict_breakdown(lead, machine, traced, notes, advise=late is None)
    link = find_slow_link(seen, machine, backend_of(lead), traced.iteration_s, agreed=alignment.agreed)
    recorded = None if given.flight_recorder is None else read_recorder(given.flight_recorder)
    if recorded is not None:
        notes += recorded.notes
    basis = lead.made_by
    return Explanation(
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
        notes=tuple(notes),
        buckets="" if basis is None else bucket_origin(basis),
        late_untold=explain_unknown(seen),
        late_unsure=None if late is not None else explain_unsure(seen),
    )


def backend_of(rank: TracedRank) -> Backend:
    """Return whose collectives the rank's are."""
    if rank.backend == "mpi":
        return "mpi"
    return "gloo" if rank.backend == "gloo" or rank.device == "cpu" else "nccl"


def summarise_ranks(ranks: Sequence[TracedRank]) -> Summary:
    """Return the usual step: the median period of the slowest rank, with the parts of the first.

    Raises:
        TraceError: steps that take no time.
    """
    first = ranks[0]
    counted = [it for rank in ranks for it in rank.counted]
    periods = summarise(Trace(len(ranks), first.backend or "", counted))
    if not periods.iteration_s > 0:
        what = f"its steps take {periods.iteration_s:g} s"
        raise TraceError(what, place=first.place, remedy="record whole steps, the profiler's step() after each")
    return periods


def _machine(
    given: RunFacts, ranks: Ranks, lead: TracedRank, splits: Sequence[CollectiveSummary], notes: list[str]
) -> TracedMachine | None:
    backend = backend_of(lead)
    try:
        seen = count_node_gpus(ranks.ranks)
        machine = machine_of(ranks.world_size, lead.device, wire_times(splits), backend, given, seen)
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
    lead: TracedRank, machine: TracedMachine | None, traced: Summary, notes: list[str], *, advise: bool
) -> PredictedBreakdown | None:
    if machine is None or lead.made_by is None:
        return None
    backend = backend_of(lead)
    try:
        return foretell(lead.made_by, machine, traced.iteration_s, traced_parts(traced), backend, advise=advise)
    except InputError as error:
        notes.append(f"{UNPREDICTED}{error}")
        return None
