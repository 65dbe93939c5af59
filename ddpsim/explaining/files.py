"""The files of a folder of traces, each read as one `TracedRank`: what a verdict or a prediction starts from.

Start at `read_ranks`: it lists the files, reads them (by a pool of processes where there is one), leaves out with a
note what cannot be read, and refuses traces of different runs. A file is one of two kinds:

- `read_recorded_rank`: a trace of `ddpexec` or of the simulator, whose records are iterations already;
- `read_kineto_rank`: a trace of `torch.profiler`, in which `ddpsim.workload.kineto` finds the steps.

One rank, the lead, also gets the `PredictionBasis`: workload, buckets and host costs of the traced configuration.
"""

from __future__ import annotations

import gc
import os
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Mapping as Table
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, islice, pairwise
from pathlib import Path
from statistics import median, mode

from ddpsim.bucketing import BucketCaps
from ddpsim.bucketing.caps import TorchCall
from ddpsim.common.errors import InputError, TraceError, WorkloadError
from ddpsim.common.files import MOST_TRACE_BYTES, BoundedFile
from ddpsim.common.strict import parse_whole_number
from ddpsim.common.workers.crew import WorkerPool
from ddpsim.explaining.basis import PredictionBasis, basis_of
from ddpsim.explaining.ranks import UNPREDICTED, Accumulation, TracedRank
from ddpsim.topology.bounds import MOST_RANKS
from ddpsim.trace.json.reading import read_rank
from ddpsim.trace.json.schema import SCHEMA
from ddpsim.trace.metrics import complete_parts, part_fields, seconds_by_part
from ddpsim.trace.records import HOST, OPTIMIZER, BucketTimes, Iteration, Span, Trace
from ddpsim.workload import Workload
from ddpsim.workload.kineto.iterations import IterationReader
from ddpsim.workload.kineto.mapping import map_arrivals
from ddpsim.workload.kineto.replay import TimelineWithoutDdp
from ddpsim.workload.kineto.steps import HostStep, find_steps, micro_batches_of
from ddpsim.workload.kineto.workload import TraceFile, read_kineto

_STOCK = {"scheme": "ddp", "overlap": "on", "accumulate": 1, "no_sync_every": 1, "compression": "none", "comm": "real"}
"""Values of a run's options under stock DDP, the only configuration that is predicted; `validate` judges others."""

_CALL = "torch"
"""Key among a run's options of the call of torch's constructor that makes its plan."""


def read_recorded_rank(path: str | Path, shapes: Workload | None = None, *, lead: bool = False) -> TracedRank:
    """Return the rank of a trace of `ddpexec` or `ddpsim`.

    Args:
        path: the file.
        shapes: the workload that was run, where known.
        lead: whether the prediction is made of this rank; its `basis` is read then.

    Raises:
        TraceError: truncated or malformed.
    """
    rank, trace = read_rank(path)
    traced = rank_from_trace(trace, rank, str(path))
    if not lead:
        return traced
    try:
        return replace(traced, basis=_basis(traced, trace, rank, shapes))
    except InputError as error:
        return replace(traced, notes=(*traced.notes, f"{UNPREDICTED}{error}"))


def _basis(traced: TracedRank, trace: Trace, rank: int, shapes: Workload | None) -> PredictionBasis:
    """Return what a prediction of the recorded run rests on: the workload that was run, and its last buckets.

    Raises:
        WorkloadError: no workload is given, or one of another model.
        TraceError: a run that is not stock DDP's.
    """
    if shapes is None:
        what = "a recorded run holds no step without DDP"
        remedy = "give the workload that it ran, as `python -m ddpexec capture` writes it: `shapes=capture.json`"
        raise WorkloadError(what, place="shapes", remedy=remedy)
    for name, usual in _STOCK.items():
        if traced.options.get(name, usual) != usual:
            what = f"the run has {name}={traced.options[name]}"
            raise TraceError(what, place=traced.place, remedy="hold a prediction against it with `ddpsim validate`")
    last = next((it for it in reversed(trace.of_rank(rank)) if it.buckets), None)
    groups = () if last is None else tuple(bucket.parameters for bucket in last.buckets)
    bucketed = {index for group in groups for index in group}
    if groups and bucketed != set(range(len(shapes.parameters))):
        what = f"{shapes.name} has {len(shapes.parameters)} parameters, the traced buckets hold {len(bucketed)}"
        raise WorkloadError(what, place="shapes", remedy="give the workload that was run")
    order = tuple(index for group in groups for index in group)
    input_s = median(it.input_s or 0.0 for it in traced.iterations)
    broadcasts = traced.options.get("broadcast_buffers", True) is not False
    return PredictionBasis(shapes, groups, order, {}, 0.0, broadcasts, input_s, caps=run_caps(traced.options))


def run_caps(options: Mapping[str, object]) -> BucketCaps | None:
    """Return the bucket caps among a run's options; None where there are none, or the buckets are a plan of its own."""
    listed, call = options.get("bucket_cap_mb_list"), options.get(_CALL)
    if isinstance(listed, list | tuple) and all(isinstance(cap, int | float) for cap in listed):
        return BucketCaps(bucket_cap_mb_list=tuple(listed))
    if "bucket_cap_mb" in options:
        named = ("bucket_cap_mb", "first_bucket_mb")
        values = {name: float(value) for name in named if isinstance(value := options.get(name), int | float)}
        return BucketCaps(bucket_cap_mb=values.get("bucket_cap_mb"), first_bucket_mb=values.get("first_bucket_mb"))
    with suppress(InputError):
        return TorchCall.parse(call).caps if isinstance(call, str) else None
    return None


def _options(provenance: Mapping[str, object]) -> dict[str, object]:
    """Return the options of a run, with torch's call that makes its plan, and which steps were stamped."""
    options, plan = provenance.get("options"), provenance.get("plan")
    known = dict(options) if isinstance(options, Mapping) else {}
    if "every" in provenance:
        # `ddpexec.trace` stamped a loop that constructs DDP itself: the recorded plan is no call that anybody made.
        return {**known, "every": provenance["every"]}
    return {**known, _CALL: plan["torch"]} if isinstance(plan, Mapping) and "torch" in plan else known


def rank_from_trace(trace: Trace, rank: int, place: str) -> TracedRank:
    """Return one rank of a recorded trace."""
    iterations, device = trace.of_rank(rank), trace.provenance.get("compute_device")
    updates = [span for span in trace.spans if span.rank == rank and span.stream == HOST and span.name == OPTIMIZER]
    updates.sort(key=lambda span: span.start_s)
    return TracedRank(
        rank=rank,
        world_size=trace.world_size,
        backend=trace.backend,
        # A run that does not record its device has the one that its backend is for.
        device=device if isinstance(device, str) else "cpu" if trace.backend in ("gloo", "mpi") else "GPU",
        place=place,
        kind="ddpsim",
        scheme="ddp",
        iterations=tuple(_with_loading(it, updates) for it in iterations),
        clock="rank 0's",
        options=_options(trace.provenance),
        gpus=count if isinstance(count := trace.provenance.get("local_world_size"), int) else 0,
    )


def _with_loading(it: Iteration, updates: Sequence[Span]) -> Iteration:
    """Return an iteration with its `input_s` and the rank's own work by phase.

    Records of `ddpexec` hold no loading: it is what lies between the end of the optimizer's span and that of the
    iteration, and until here was counted as DDP's overhead, of which it can be no more.
    """
    recorded = it.input_s is not None
    updated = [] if recorded else [span.end_s for span in updates if it.start_s <= span.start_s < it.end_s]
    gap_s = max(0.0, it.end_s - max(updated)) if updated else 0.0
    input_s = it.input_s if it.input_s is not None else min(gap_s, max(0.0, it.ddp_overhead_s))
    own = {
        "forward": it.forward_s,
        "backward": it.backward_compute_s,
        "optimizer": it.optimizer_s,
        "input": input_s,
    }
    parts = complete_parts({**seconds_by_part(it), "input_s": input_s}, it.iteration_s)
    return replace(it, **part_fields(parts), held_up_s=0.0, layer_comm_s=None, stepped=True, others=(), host_s=own)


_TORCH_OPERATORS = ("aten::", "autograd::", "torch::", "ProfilerStep", "Optimizer.", "c10d::")
_REDUCING = ("all_reduce", "reduce_scatter")


def read_kineto_rank(path: str | Path, shapes: Workload | None, *, lead: bool) -> TracedRank:
    """Return the rank of a Kineto trace: its usual steps, with their parts and collectives.

    Args:
        path: the trace.
        shapes: a workload of the same model, where known.
        lead: whether the prediction is made of this rank; its `basis` is read then.

    Raises:
        TraceError: an unreadable trace, or one without training steps.
    """
    file = read_kineto(path)
    all_steps = _steps_in(file)
    groups = micro_batches_of(all_steps)
    # Medians are of steps of one kind: as many micro-batches, or, of one alone, as many gradients. The first traced
    # step is often cut, and an evaluation between two epochs has other gradients.
    kinds = [(len(group), len(group[0].accumulations) if len(group) == 1 else 0) for group in groups]
    usual = mode(kinds)
    chosen = [[_from_its_forward(s, file) for s in g] for g, kind in zip(groups, kinds, strict=True) if kind == usual]
    dropped = len(groups) - len(chosen)
    notes = [f"{dropped} steps with another number of gradients, or of micro-batches, left out"] * (dropped > 0)
    steps = list(chain.from_iterable(chosen))
    gradients = mode(len(step.accumulations) for step in steps)
    # Of dropped steps too: what DDP did in one delays the device in the next.
    without_ddp = TimelineWithoutDdp(file.events.works, all_steps)
    mapping = None  # a trace without shapes, and no workload that has them: steps are read, parameters stay unnamed
    with suppress(InputError):
        mapping = map_arrivals([s for s in steps if len(s.accumulations) == gradients], shapes, file.place)
    reader = IterationReader(file, without_ddp, mapping)
    between = [after[0].forward_s - group[-1].end_s for group, after in pairwise(chosen)]
    ahead_s = median(between) if between else 0.0
    each = [reader.read(step, after, ahead_s) for step, after in zip(steps, [*steps[1:], None], strict=True)]
    # `each` is one iteration a micro-batch; `rows` are those of one step, `iterations` the steps.
    rows = [list(islice(rest, len(group))) for rest in [iter(each)] for group in chosen]
    iterations = tuple(map(_join, rows))
    basis, ddp = None, any(step.collectives for step in steps)
    unpredicted = _explain_unpredicted(steps, each)
    if lead and not ddp and any(collective.own for it in iterations for collective in it.collectives):
        notes.append(UNPREDICTED + "its collectives are not those that hooks of stock DDP launch")
    elif lead and unpredicted:
        notes.append(f"{UNPREDICTED}{unpredicted}")
    elif lead:
        try:
            # On a GPU the host does not wait for collectives at the end of backward: its stream does.
            waited = [0.0 if file.events.works else row.exposed_comm_s for row in each]
            whole = [pair for pair in zip(steps, waited, strict=True) if len(pair[0].accumulations) == gradients]
            basis = basis_of(file, without_ddp, whole, shapes)
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
        iterations=iterations,
        notes=tuple(notes),
        clock=file.host,
        basis=basis,
        gpus=file.gpus,
        base_ns=file.base_ns,
        accumulation=_accumulation(rows, ddp=ddp),
    ).shift(file.events.origin_s)


def _steps_in(file: TraceFile) -> list[HostStep]:
    """Return the steps of training in a trace.

    Raises:
        TraceError: there are none; the message says what the trace may be instead.
    """
    operators = file.events.operators
    if not any(event.name.startswith(_TORCH_OPERATORS) for event in operators):
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
    """Return one step of its micro-batches: their parts summed, their collectives numbered on."""
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

    A micro-batch counts as reducing gradients from half the bytes of the largest one on: a loop may also all-reduce its
    loss in each, a few bytes.
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
    """Return the step with its forward moved to torch's first `FSDP::` mark, where `fully_shard` trains.

    DDP has a mark of its own for forward, which `find_steps` takes already.
    """
    operators = file.events.operators
    begin, end = (
        bisect_left(operators, moment_s, key=lambda event: event.start_s)
        for moment_s in (step.forward_s, step.backward_s)
    )
    mark = next((operators[n] for n in range(begin, end) if operators[n].name.startswith("FSDP::")), None)
    return step if mark is None or step.collectives else replace(step, forward_s=mark.start_s)


def _explain_unpredicted(steps: Sequence[HostStep], read: Sequence[Iteration]) -> str:
    """Return why a step cannot be predicted for collectives that are not DDP's; empty where it can.

    Collectives between backward and the next forward are taken as traced, a constant of the loop. Those within forward
    and backward hold layers up, and the simulator has no such node: its step would come out too short.
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


_NAMES = re.compile(r".*\.json(\.gz)?", re.IGNORECASE)
_NO_TRACES = ("run.json", "workload.json", "plan.json", "calibration.json", "prediction.json", "allreduce.json")
"""Files in a run's folder that are no traces."""
_HEAD = 1 << 16
"""Bytes in which a trace of ours has named its schema."""
_REMEDY = "give a folder of rank traces: torch.profiler's export_chrome_trace or ddpexec's --out writes one file a rank"


@dataclass(frozen=True, slots=True)
class Ranks:
    """The ranks of a run whose traces were read, ascending."""

    ranks: tuple[TracedRank, ...]
    world_size: int
    """Ranks of the run, traced or not."""
    missing: tuple[int, ...]
    """Ranks of which there is no trace."""
    notes: tuple[str, ...]
    """Files left out and why, and ranks that were guessed from names."""


def trace_files(path: str | Path) -> list[Path]:
    """Return the files of rank traces at `path`: itself, or those in the folder, by the numbers in their names.

    Raises:
        TraceError: no such file, or no trace in the folder.
    """
    place = Path(path)
    if os.path.isfile(place):
        return [place]
    if not os.path.isdir(place):
        raise TraceError("no such file or folder", place=str(path), remedy=_REMEDY)
    files = [f for f in place.iterdir() if f.is_file() and _NAMES.fullmatch(f.name) and f.name not in _NO_TRACES]
    if not files:
        raise TraceError("holds no trace, no .json or .json.gz", place=str(path), remedy=_REMEDY)
    # Numbers by value, so that rank10 comes behind rank2: the first file is the lead.
    return sorted(files, key=lambda file: [int(t) if t.isdecimal() else t for t in re.split(r"([0-9]+)", file.name)])


def read_file(path: Path, shapes: Workload | None, lead: bool) -> TracedRank:
    """Return the rank of one file, whoever wrote it.

    Raises:
        TraceError: unreadable, or no trace of training.
    """
    if _is_ours(path):
        return read_recorded_rank(path, shapes, lead=lead)
    return read_kineto_rank(path, shapes, lead=lead)


def read_ranks(path: str | Path, shapes: Workload | None, crew: WorkerPool | None) -> Ranks:
    """Read every rank's trace; what cannot be read is left out and named, as long as one can.

    Raises:
        TraceError: no file can be read, or they are of runs of different sizes.
    """
    files = trace_files(path)
    read: list[TracedRank] = []
    refused: list[InputError] = []
    for file, rank in zip(files, _read_each(files, shapes, crew), strict=True):
        if isinstance(rank, InputError):
            refused.append(rank)
            continue
        named = rank if rank.rank is not None else replace(rank, rank=_number_in(file.name))
        if wrong := _check_ranks(named):
            refused.append(wrong)
        else:
            read.append(named)
    if not read:
        raise refused[0]
    return _join_ranks(read, [f"left out: {error}" for error in refused])


def _check_ranks(traced: TracedRank) -> TraceError | None:
    """Return the error of a rank, or a number of ranks, that no job has; None where there is nothing wrong."""
    ranks = MOST_RANKS if traced.world_size is None else traced.world_size
    if 0 < ranks <= MOST_RANKS and (traced.rank is None or 0 <= traced.rank < ranks):
        return None
    what = f"rank {traced.rank} of {'any' if traced.world_size is None else traced.world_size} ranks"
    remedy = f"number ranks from 0; a job has {MOST_RANKS:,} at most"
    return TraceError(what, place=traced.place, remedy=remedy)


def _read_each(
    files: Sequence[Path], shapes: Workload | None, crew: WorkerPool | None
) -> list[TracedRank | InputError]:
    if crew is None:
        return [_try_read(file, shapes, number == 0) for number, file in enumerate(files)]
    futures: list[Future[TracedRank | InputError]] = [
        crew.submit(_try_read, file, shapes, number == 0) for number, file in enumerate(files)
    ]
    return [future.result() for future in futures]


def _try_read(path: Path, shapes: Workload | None, lead: bool) -> TracedRank | InputError:
    """Return the rank, or the error, which as an exception of another process would lose its place."""
    collecting = gc.isenabled()
    # A trace is millions of small objects that stay: looking for cycles among them takes a seventh of the time.
    gc.disable()
    try:
        return read_file(path, shapes, lead)
    except InputError as error:
        return TraceError(error.message, place=error.place, remedy=error.remedy)
    finally:
        if collecting:
            gc.enable()


def _join_ranks(read: Sequence[TracedRank], notes: list[str]) -> Ranks:
    """Return the ranks of one run by number, on one base of time.

    Raises:
        TraceError: traces of different runs, by their number of ranks, backend or device.
    """
    sizes = {rank.world_size: rank.place for rank in read if rank.world_size is not None}
    if len(sizes) > 1:
        (one, first), (other, second) = list(sizes.items())[:2]
        what = f"of a run of {other} ranks, {first} is of one of {one}"
        raise TraceError(what, place=second, remedy="give each run a folder of its own")
    for each in read[1:]:
        ours, theirs = (f"{rank.backend or 'no process group'} on {rank.device}" for rank in (read[0], each))
        if ours != theirs and read[0].kind == each.kind:
            what = f"of a run with {theirs}, {read[0].place} is of one with {ours}"
            raise TraceError(what, place=each.place, remedy="give each run a folder of its own")
    # Kineto counts each file's stamps from a base of its own.
    read = [each.shift((each.base_ns - read[0].base_ns) / 1e9) for each in read]
    ranks: dict[int, TracedRank] = {}
    for number, each in enumerate(read):
        rank = number if each.rank is None else each.rank
        if each.rank is None:
            notes.append(f"{each.place} does not say its rank, taken as {rank}")
        if rank in ranks:
            # Files of two runs in one folder: the later steps are of the newer.
            older, newer = sorted((ranks[rank], each), key=lambda one: one.iterations[0].index)
            notes.append(f"rank {rank} has two traces, {newer.place} is taken and {older.place} left out")
            each = newer
        ranks[rank] = each.numbered(rank)
    world_size = max([max(ranks) + 1, *(size for size in sizes if size is not None)])
    missing = tuple(rank for rank in range(world_size) if rank not in ranks)
    return Ranks(tuple(ranks[rank] for rank in sorted(ranks)), world_size, missing, tuple(notes))


def _number_in(name: str) -> int | None:
    """Return the rank in a file's name, `rank3...` or `worker3...`; other numbers are steps, hosts or times.

    `local_rank3`, `node_rank3` and `lora_rank3` are other ranks than the job's.
    """
    named = re.search(
        r"(?<![a-z])(?<!local[_-])(?<!node[_-])(?<!lora[_-])(?:rank|worker)[_-]?([0-9]+)", name, re.IGNORECASE
    )
    return None if named is None else parse_whole_number(named[1])


def _is_ours(path: Path) -> bool:
    with BoundedFile(path, str(path), TraceError, _REMEDY, MOST_TRACE_BYTES) as file:
        return f'"{SCHEMA}"'.encode() in file.read(_HEAD)
