"""A Kineto trace of one rank, of stock torch on GPUs or CPUs, as steps with their parts and collectives."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from collections.abc import Mapping as Table
from contextlib import suppress
from dataclasses import replace
from itertools import chain, islice, pairwise
from pathlib import Path
from statistics import median, mode

from ddpsim.common.errors import InputError, TraceError
from ddpsim.explaining.basis import basis_of
from ddpsim.explaining.ranks import UNPREDICTED, Accumulation, TracedRank
from ddpsim.trace.metrics import part_fields, seconds_by_part
from ddpsim.trace.records import BucketTimes, Iteration
from ddpsim.workload import Workload
from ddpsim.workload.kineto.iterations import IterationReader
from ddpsim.workload.kineto.mapping import map_arrivals
from ddpsim.workload.kineto.replay import TimelineWithoutDdp
from ddpsim.workload.kineto.steps import HostStep, find_steps, micro_batches_of
from ddpsim.workload.kineto.workload import TraceFile, read_kineto

_TORCH = ("aten::", "autograd::", "torch::", "ProfilerStep", "Optimizer.", "c10d::")
_REDUCING = ("all_reduce", "reduce_scatter")


def read_kineto_rank(path: str | Path, shapes: Workload | None, *, lead: bool) -> TracedRank:
    """Return what a Kineto trace says of its rank.

    Args:
        path: the trace.
        shapes: a workload of the same model, where known.
        lead: whether a prediction is to rest on it.

    Raises:
        TraceError: an unreadable trace, or one without training steps.
    """
    file = read_kineto(path)
    found = _steps_in(file)
    groups = micro_batches_of(found)
    # Steps are alike by their micro-batches, or by the gradients of the only one.
    kinds = [(len(group), len(group[0].accumulations) if len(group) == 1 else 0) for group in groups]
    usual = mode(kinds)
    kept = [[_from_its_forward(s, file) for s in g] for g, kind in zip(groups, kinds, strict=True) if kind == usual]
    left = len(groups) - len(kept)
    notes = [f"{left} steps with another number of gradients, or of micro-batches, left out"] * (left > 0)
    steps = list(chain.from_iterable(kept))
    gradients = mode(len(step.accumulations) for step in steps)
    alone = TimelineWithoutDdp(file.events.works, found)
    mapping = None  # of a trace without shapes, where none are given
    with suppress(InputError):
        mapping = map_arrivals([s for s in steps if len(s.accumulations) == gradients], shapes, file.place)
    reader = IterationReader(file, alone, mapping)
    between = [after[0].forward_s - group[-1].end_s for group, after in pairwise(kept)]
    ahead_s = median(between) if between else 0.0
    each = [reader.read(step, after, ahead_s) for step, after in zip(steps, [*steps[1:], None], strict=True)]
    rows = [list(islice(rest, len(group))) for rest in [iter(each)] for group in kept]
    seen = tuple(map(_join, rows))
    basis, ddp = None, any(step.collectives for step in steps)
    unpredicted = _explain_unpredicted(steps, each)
    if lead and not ddp and any(collective.own for it in seen for collective in it.collectives):
        notes.append(UNPREDICTED + "its collectives are not those that hooks of stock DDP launch")
    elif lead and unpredicted:
        notes.append(f"{UNPREDICTED}{unpredicted}")
    elif lead:
        try:
            waited = [0.0 if file.events.works else row.exposed_comm_s for row in each]
            whole = [pair for pair in zip(steps, waited, strict=True) if len(pair[0].accumulations) == gradients]
            basis = basis_of(file, alone, whole, shapes)
        except InputError as error:
            notes.append(f"{UNPREDICTED}{error}")
    return TracedRank(
        rank=file.rank,
        world_size=file.world_size,
        backend=file.backend,
        device=file.device,
        place=file.place,
        kind="kineto",
        scheme="ddp" if ddp else "other",
        iterations=seen,
        notes=tuple(notes),
        clock=file.host,
        made_by=basis,
        gpus=file.gpus,
        base_ns=file.base_ns,
        accumulation=_accumulation(rows, ddp=ddp),
    ).shift(file.events.origin_s)


def _steps_in(file: TraceFile) -> list[HostStep]:
    """Return the trace's steps.

    Raises:
        TraceError: none, with what the trace seems to be.
    """
    operators = file.events.operators
    if not any(event.name.startswith(_TORCH) for event in operators):
        remedy = "record training with torch.profiler, CPU activity included"
        raise TraceError("no operator of torch is in it: of another framework?", place=file.place, remedy=remedy)
    try:
        return find_steps(file.events, file.place)
    except TraceError:
        if not any("ompiledFunction" in e.name or "Torch-Compiled" in e.name for e in operators):
            raise
        what = "no gradient is accumulated outside its compiled graphs, so that no hook tells backward's course"
        remedy = "trace a step without compiled autograd"
        raise TraceError(what, place=file.place, remedy=remedy) from None


def _join(rows: Sequence[Iteration]) -> Iteration:
    """Return the step that micro-batches make."""
    if len(rows) == 1:
        return rows[0]
    sent = [replace(each, index=index) for index, each in enumerate(chain.from_iterable(r.collectives for r in rows))]

    def total(of: Callable[[Iteration], Table[str, float]]) -> dict[str, float]:
        return {name: sum(of(row).get(name, 0.0) for row in rows) for row in rows for name in of(row)}

    return replace(
        rows[-1],
        start_s=rows[0].start_s,
        **part_fields(total(seconds_by_part)),
        host_s=total(lambda row: row.host_s),
        device_s=total(lambda row: row.device_s),
        buckets=tuple(each for each in sent if isinstance(each, BucketTimes)),
        others=tuple(each for each in sent if not isinstance(each, BucketTimes)),
    )


def _accumulation(steps: Sequence[Sequence[Iteration]], *, ddp: bool) -> Accumulation | None:
    """Return over how many micro-batches a step accumulates gradients, and what reducing them before the last costs.

    Those reduce gradients that sum half as much as the most of them: a loop may sum its loss in each.
    """
    if len(steps[0]) == 1:
        return None
    own = any(c.own for rows in steps for row in rows for c in row.collectives)
    sums = [
        [sum(c.size_bytes or 1 for c in r.collectives if c.own >= own and c.operation in _REDUCING) for r in rows]
        for rows in steps
    ]
    reducing = round(median(sum(0 < 2 * each >= max(row) for each in row) for row in sums))
    waits_s = median(sum(row.exposed_comm_s for row in rows[:-1]) for rows in steps) if ddp else None
    return Accumulation(len(steps[0]), reducing, waits_s)


def _from_its_forward(step: HostStep, file: TraceFile) -> HostStep:
    """Return the step from where fully_shard's forward begins, where that is its; DDP marks its own."""
    operators = file.events.operators
    begin, end = (
        bisect_left(operators, moment_s, key=lambda event: event.start_s)
        for moment_s in (step.forward_s, step.backward_s)
    )
    mark = next((operators[n] for n in range(begin, end) if operators[n].name.startswith("FSDP::")), None)
    return step if mark is None or step.collectives else replace(step, forward_s=mark.start_s)


def _explain_unpredicted(steps: Sequence[HostStep], read: Sequence[Iteration]) -> str:
    """Return why collectives that are not DDP's keep a step from being predicted; empty where they do not.

    What the loop does between backward and the next forward is taken as traced. What layers wait for within forward
    and backward is not: the simulator knows no such collective.
    """
    counts = [
        Counter(c.operation for c in it.collectives if not c.own and c.launched_s < step.backward_end_s)
        for step, it in zip(steps, read, strict=True)
    ]
    usual = Counter({name: round(median(each[name] for each in counts)) for name in set().union(*counts)})
    if any(usual.values()):
        many = ", ".join(f"{count} {name}" for name, count in sorted(usual.items()) if count)
        what = f"forward and backward hold collectives that are not DDP's, {many} a step"
        return f"{what}: the simulator has nothing that waits for those"
    if not any(step.reducer for step in steps) and any(it.collectives for it in read):
        return "its gradients are not reduced by DDP, the collectives between backward and the optimizer are the loop's"
    return ""
