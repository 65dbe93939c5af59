"""`explain`: from the traces of a run to its `Explanation`; each step of the way is one call of another file."""

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
from ddpsim.explaining.late import excess_s, explain_no_verdict, explain_uncertain_excess, late_rank
from ddpsim.explaining.links import find_slow_link
from ddpsim.explaining.machine import TracedMachine, count_node_gpus, machine_of
from ddpsim.explaining.predicted import PredictedBreakdown, predict_traced
from ddpsim.explaining.ranks import UNPREDICTED, TracedRank, traced_parts
from ddpsim.explaining.recorder import read_recorder
from ddpsim.explaining.run_facts import RunFacts
from ddpsim.explaining.splits import CollectiveSummary, splits_of, wire_times
from ddpsim.trace.metrics import Summary, summarise
from ddpsim.trace.records import Trace
from ddpsim.workload import Workload


def explain(
    traces: str | Path,
    facts: RunFacts | None = None,
    *,
    shapes: Workload | None = None,
    crew: WorkerPool | None = None,
    predict: bool = True,
) -> Explanation:
    """Explain the run whose rank traces lie at `traces`.

    Args:
        traces: a folder, or one rank's file.
        facts: what else is known of the run.
        shapes: the workload that `facts.shapes` names.
        crew: processes that read the traces; None is this one.
        predict: whether to predict the traced configuration and to advise on its buckets.

    Raises:
        InputError: no trace that can be read, traces of different runs, or facts that contradict them.
    """
    facts = facts or RunFacts()
    untraced_s = facts.untraced_s
    if facts.nccl_tests is not None and facts.topology is None and facts.topo is None:
        remedy = "say whose table it is: add `topology` or `topo`"
        raise InputError("a table without its machine", place="nccl_tests", remedy=remedy)
    ranks = read_ranks(traces, shapes, crew)
    aligned, alignment = align_ranks(ranks.ranks)
    splits = splits_of(aligned)
    traced = summarise_ranks(aligned)
    notes = [*ranks.notes, *(f"rank {rank.rank}: {note}" for rank in aligned for note in rank.notes)]
    lead = aligned[0]
    machine = _machine(facts, ranks, lead, splits, notes) if predict else None
    # Buckets are no remedy while ranks wait for one of them: advice on them would rest on its delay.
    late = late_rank(aligned)
    predicted = _predict_breakdown(lead, machine, traced, notes, advise=late is None)
    link = find_slow_link(aligned, machine, backend_of(lead), traced.iteration_s, agreed=alignment.agreed)
    recorded = None if facts.flight_recorder is None else read_recorder(facts.flight_recorder)
    if recorded is not None:
        notes += recorded.notes
    basis = lead.basis
    return Explanation(
        ranks=ranks,
        alignment=alignment,
        traced=traced,
        shares=shares_of(lead, aligned, late),
        splits=splits,
        late=late,
        link=link,
        excess_s=excess_s(aligned),
        predicted=predicted,
        recorded=recorded,
        untraced_s=untraced_s,
        notes=tuple(notes),
        buckets="" if basis is None else bucket_origin(basis),
        no_verdict_reason=explain_no_verdict(aligned),
        uncertain_excess=None if late is not None else explain_uncertain_excess(aligned),
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
    facts: RunFacts, ranks: Ranks, lead: TracedRank, splits: Sequence[CollectiveSummary], notes: list[str]
) -> TracedMachine | None:
    backend = backend_of(lead)
    try:
        node_gpus = count_node_gpus(ranks.ranks)
        machine = machine_of(ranks.world_size, lead.device, wire_times(splits), backend, facts, node_gpus)
    except InputError as error:
        # A machine that the user names must fit; one that is assumed may not, and then there is no prediction.
        if any((facts.topology, facts.topo, facts.nccl_tests)):
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
    if machine is None or lead.basis is None:
        return None
    backend = backend_of(lead)
    try:
        return predict_traced(lead.basis, machine, traced.iteration_s, traced_parts(traced), backend, advise=advise)
    except InputError as error:
        notes.append(f"{UNPREDICTED}{error}")
        return None
