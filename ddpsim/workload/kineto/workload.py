"""A workload from a Kineto trace of a training, under DDP or on one GPU alone.

A gradient is ready at the end of the last kernel that it depends on: on the compute stream, the last one the host had
launched when autograd accumulated it. Communication and DDP's own host work and kernels are cut out, and the device's
time line is replayed without them: a kernel that had waited for the host still waits as long after its launch, one
that had waited for the device starts when the device is free.

Start at `import_trace`: `open_trace` takes the file apart, `workload_in` puts the workload together.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping as Table
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np

from ddpsim.common.errors import TraceError, shorten
from ddpsim.common.files import display_name
from ddpsim.common.strict import parse_whole_number
from ddpsim.common.units import format_time
from ddpsim.trace.json.streaming import StreamedTrace
from ddpsim.workload.gpus import gpu_model
from ddpsim.workload.kineto.collectives import calls_in, foreign_calls
from ddpsim.workload.kineto.events import DeviceWork, Events, busy_s, collect
from ddpsim.workload.kineto.mapping import Mapping, forward_use_in, map_arrivals
from ddpsim.workload.kineto.replay import TimelineWithoutDdp
from ddpsim.workload.kineto.steps import HostStep, describe_accumulation, find_steps, micro_batches_of
from ddpsim.workload.profile import Phase, Workload

_REMEDY = "export it again: torch.profiler's export_chrome_trace writes one file a rank"
_PHASES = ("forward", "backward", "optimizer")
_ET_REMEDY = "give `ddpsim workload import` NAME.RANK.et; `ddpsim explain` takes Kineto traces"
_RANK = re.compile(r"\[?rank[ _:#-]*([0-9]+)\]?", re.IGNORECASE)
_ACCELERATORS = re.compile(
    r"(?:\b|_)(?:xpu|hpu|npu|ascend|mtia|privateuse1|privateuseone|mlu|musa|gcu|tpu|xla|xccl|hccl|cncl|mccl)(?:\b|_)",
    re.IGNORECASE,
)
"""In what a trace of such devices calls its categories, processes, operators or backend: Intel's, Gaudi's, Huawei's,
Meta's, and what registers itself as torch's PrivateUse1."""
_HOST_BOUND = 0.6
"""Share of the step below which kernels leave the device idle for want of launches."""


@dataclass(frozen=True, slots=True)
class Imported:
    """A workload from a trace, and what should be known about it.

    Attributes:
        workload: one rank without DDP.
        notes: how arrivals were mapped, what was cut out, whether it is host-bound or device-bound.
    """

    workload: Workload
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TraceFile:
    """A Kineto file's events and what its header says; None where it says nothing.

    Attributes:
        base_ns: what the clock of its events counts from.
    """

    place: str
    events: Events
    device: str
    rank: int | None
    world_size: int | None
    backend: str | None
    host: str | None = None
    gpus: int = 0
    base_ns: int = 0


def read_kineto(path: str | Path) -> TraceFile:
    """Read a Kineto trace, `.json` or `.json.gz`, or from standard input for `-`.

    Raises:
        TraceError: unreadable, truncated, not JSON, or not a trace; one message with the place.
    """
    if str(path).endswith(".et"):
        raise TraceError("a Chakra execution trace, no Kineto trace", place=display_name(path), remedy=_ET_REMEDY)
    streamed = StreamedTrace(path, TraceError, _REMEDY)
    document = streamed.header
    # The file is read once, event by event, as its text may be larger than memory. Keys of the header stand before and
    # behind the events: `document` is whole only when they have been read, hence all checks of it below. What fails,
    # or has no events, is first held against a format that people confuse with this one.
    try:
        events = collect(streamed.batches(), display_name(path))
    except TraceError:
        refuse_execution_trace(document, display_name(path))
        raise
    if "traceEvents" not in document:
        refuse_execution_trace(document, display_name(path))
        raise TraceError("not a Kineto trace: no traceEvents", place=display_name(path), remedy=_REMEDY)
    if not isinstance(document["traceEvents"], list):
        what = f"{type(document['traceEvents']).__name__} is not a list of events"
        raise TraceError(what, place=f"{display_name(path)}: traceEvents")
    properties, info = document.get("deviceProperties"), document.get("distributedInfo")
    first = properties[0] if isinstance(properties, list) and properties else {}
    name = first.get("name") if isinstance(first, dict) else None
    device = "cpu" if not events.works else gpu_model(name) if isinstance(name, str) else "GPU"
    info = info if isinstance(info, dict) else {}

    def number(key: str) -> int | None:
        """Return a number of the process group's, or one that the loop added with the profiler's `add_metadata`."""
        value = info.get(key, document.get(key))
        value = parse_whole_number(value) if isinstance(value, str) else value
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    backend, host, base_ns = info.get("backend"), document.get("host_name"), document.get("baseTimeNanoseconds")
    _check_device(events, str(backend), display_name(path))
    named = (_RANK.fullmatch(process) for process in events.processes)
    rank = number("rank")
    if rank is None:
        rank = next((parse_whole_number(match[1]) for match in named if match), None)
    return TraceFile(
        display_name(path),
        events,
        device,
        rank,
        number("world_size"),
        backend if isinstance(backend, str) else None,
        host if isinstance(host, str) else None,
        len(properties) if isinstance(properties, list) else 0,
        base_ns if isinstance(base_ns, int) and 0 <= base_ns < 1 << 63 else 0,
    )


def refuse_execution_trace(document: Table[str, object], place: str) -> None:
    """Refuse what has operators and their order, but no times.

    Raises:
        TraceError: `document` is the beginning of a PyTorch execution trace or of Chakra's JSON; with what to do.
    """
    schema = document.get("schema")
    if "nodes" in document or (isinstance(schema, str) and "chakra" in schema):
        what = "a PyTorch execution trace, of operators without a device's times"
        how = "join both with chakra_trace_link and chakra_converter to an .et, for `ddpsim workload import`"
        raise TraceError(what, place=place, remedy=f"give the Kineto trace of the same run, or {how}")
    if "workload_graph" in document or (document and document.keys() <= {"version", "attr"}):
        raise TraceError("a Chakra execution trace as JSON", place=place, remedy=_ET_REMEDY)


def _check_device(events: Events, backend: str, place: str) -> None:
    """Refuse a trace of an accelerator of another kind: its kernels are not read, and it would pass for a CPU's.

    Raises:
        TraceError: an empty trace; or one of such an accelerator, by its categories, processes, operators or backend.
    """
    if not (events.operators or events.works or events.waits or events.unread):
        remedy = "record whole steps: the profiler's schedule may have ended before its first active one"
        raise TraceError("is empty: no event of a run is in it", place=place, remedy=remedy)
    if any(work.launch is not None for work in events.works):
        return
    names = {event.name.partition("::")[0] for event in events.operators if "::" in event.name}
    texts = [*sorted(events.unread), *events.processes, *sorted(names), backend]
    mark = next((text for text in texts if _ACCELERATORS.search(text)), None)
    if mark is not None:
        by = shorten(mark, 60)
        what = f"recorded on an accelerator that is neither CUDA's nor ROCm's, by {by}: it is not supported"
        raise TraceError(what, place=place, remedy="give traces of NVIDIA's or AMD's GPUs, or of CPUs")


@dataclass(frozen=True, slots=True)
class DissectedTrace:
    """A trace that was taken apart.

    Attributes:
        steps: its micro-batches with the usual number of gradients.
        timeline: host and device without DDP.
        mapping: which parameter each arrival is.
        notes: what was left out.
    """

    file: TraceFile
    steps: Sequence[HostStep]
    timeline: TimelineWithoutDdp
    mapping: Mapping
    notes: Sequence[str]


def open_trace(path: str | Path, shapes: Workload | None = None) -> DissectedTrace:
    """Read a trace and take it apart; arguments and errors are those of `import_trace`."""
    file = read_kineto(path)
    all_steps = find_steps(file.events, file.place)
    steps, notes = _select_alike(all_steps)
    mapping = map_arrivals(steps, shapes, file.place)
    # Of collectives that layers make by themselves a workload knows nothing.
    if steps[-1].reducer and (calls := foreign_calls(calls_in(file.events.operators), steps[-1])):
        many = ", ".join(f"{count} {name}" for name, count in sorted(calls.items()))
        what = (
            "are cut out too, and what waits for them"
            if file.events.works
            else "count as computation, with their waits"
        )
        notes.append(f"forward and backward hold collectives that are not DDP's, {many} a step: they {what}")
    return DissectedTrace(file, steps, TimelineWithoutDdp(file.events.works, all_steps), mapping, notes)


def import_trace(path: str | Path, shapes: Workload | None = None) -> Imported:
    """Return the workload recorded in a Kineto trace.

    Args:
        path: the trace of one rank.
        shapes: a workload of the same model, whose parameters and buffers are taken; needed where the trace was
            recorded without shapes.

    Raises:
        TraceError: an unreadable trace, one without iterations or gradients, or without shapes where none are given.
        WorkloadError: `shapes` is of another model.
    """
    return workload_in(open_trace(path, shapes), shapes)


def workload_in(traced: DissectedTrace, shapes: Workload | None) -> Imported:
    """Return the workload in a trace taken apart with `shapes`; see `import_trace`."""
    file, steps, mapping = traced.file, traced.steps, traced.mapping
    recorded = [_record(step, traced.timeline) for step in steps]
    _share_optimizer(steps, recorded)
    precision = _precision(traced, shapes)
    autocast_dtype = _autocast_dtype(traced, shapes) if precision == "amp" else None
    batch_size = shapes.batch_size if shapes is not None else 1
    model = shapes.name.partition("@")[0] if shapes is not None else Path(file.place).name.partition(".")[0]
    # Rows of arrivals, put under the parameters that they are of; NaN stays where a parameter never got a gradient.
    hook, ready = (np.full((len(steps), len(mapping.parameters)), np.nan) for _ in range(2))
    for row, record in enumerate(recorded):
        hook[row, list(mapping.order)] = record.hooks
        ready[row, list(mapping.order)] = record.ready
    # In which phases of each step the host waits for the device: most of the steps decide.
    groups = micro_batches_of(steps)
    waits = [{step.phase_of(w.start_s) or "optimizer" for step in group for w in step.waits} for group in groups]
    use, known = forward_use_in(file.events, steps, traced.timeline, mapping)
    device = "cpu" if file.device == "cpu" else "cuda:0"
    workload = Workload(
        name=f"{model}@{file.device.lower()}-{precision}-b{batch_size}",
        device=file.device,
        precision=precision,
        autocast_dtype=autocast_dtype,
        batch_size=batch_size,
        threads=shapes.threads if shapes is not None and file.device == "cpu" else None,
        estimated=False,
        parameters=tuple(replace(parameter, device=device) for parameter in mapping.parameters),
        buffers=shapes.buffers if shapes is not None else (),
        frozen=() if shapes is None else tuple(replace(each, device=device) for each in shapes.frozen),
        forward=_phase(recorded, "forward"),
        backward=_phase(recorded, "backward"),
        optimizer=_phase(recorded, "optimizer"),
        gradient_hook_s=hook.round(9),
        gradient_ready_s=ready.round(9),
        forward_use_s=use,
        synchronises=tuple(f"after_{p}" for p in _PHASES if 2 * sum(p in phases for phases in waits) > len(waits)),
        provenance={
            "how": "imported from a Kineto trace; the profiler slows the host",
            "mapping": mapping.how,
            "forward_use": known,
            **({"accumulation": accumulation} if (accumulation := accumulation_in(steps)) else {}),
        },
    )
    batch = (
        "batch size unknown, 1 is written" if shapes is None else f"batch size and buffers are those of {shapes.name}"
    )
    return Imported(workload, (*traced.notes, mapping.how, known, *_bound(workload), batch))


@dataclass(frozen=True, slots=True)
class _Record:
    host_s: dict[str, float]
    device_s: dict[str, float]
    hooks: list[float]
    ready: list[float]


def _select_alike(steps: Sequence[HostStep]) -> tuple[list[HostStep], list[str]]:
    """Return the micro-batches with the usual number of gradients, and notes on what they and the others are."""
    usual = statistics.mode(len(step.accumulations) for step in steps)
    alike = [step for step in steps if len(step.accumulations) == usual]
    others = [
        f"{s.name}: {len(s.accumulations)} gradients instead of {usual}, left out"
        for s in steps
        if len(s.accumulations) != usual
    ]
    sent = {s[0].name: sum(len(each.collectives) for each in s) for s in micro_batches_of(alike)}
    cut = "; ".join(f"{name}: {count} allreduces" for name, count in sent.items() if count)
    removed = [f"communication and DDP's own work cut out ({cut})"] if cut else []
    return alike, [*others, *removed, *filter(None, [accumulation_in(alike)])]


def accumulation_in(steps: Sequence[HostStep]) -> str:
    """Return what the loop accumulates and how to predict its step, in words; empty where it does not."""
    usual = usual_micro_batches(steps)
    if usual == 1:
        return ""
    whole = [group for group in micro_batches_of(steps) if len(group) == usual]
    reducing = max(sum(bool(step.collectives) for step in group) for group in whole or [[]])
    every = " --sync every" if reducing == usual else ""
    return (
        f"{describe_accumulation(usual, reducing)}: the workload is one of these, `--accumulate {usual}{every}` makes "
        "a step of them"
    )


def usual_micro_batches(steps: Sequence[HostStep]) -> int:
    """Return over how many micro-batches a usual step accumulates gradients."""
    return statistics.mode(group[0].count for group in micro_batches_of(steps))


def _share_optimizer(steps: Sequence[HostStep], recorded: Sequence[_Record]) -> None:
    """Give each micro-batch the optimizer of its step: a workload has it in every row."""
    rows = iter(recorded)
    for group in micro_batches_of(steps):
        mine = list(islice(rows, len(group)))
        host_s, device_s = (sum(getattr(row, clock)["optimizer"] for row in mine) for clock in ("host_s", "device_s"))
        for row in mine:  # both clocks of a CPU are one object
            row.host_s["optimizer"], row.device_s["optimizer"] = host_s, device_s


def _record(step: HostStep, timeline: TimelineWithoutDdp) -> _Record:
    moment = timeline.moment
    backward_s, begin_s = moment(step.backward_s), timeline.first_start_s(step.backward_s)
    ends = [accumulation.end_s for accumulation in step.accumulations]
    hooks = [moment(end_s) - backward_s for end_s in ends]
    host = {
        "forward": backward_s - moment(step.forward_s),
        "backward": moment(step.backward_end_s) - backward_s,
        "optimizer": sum(interval.end_s - interval.start_s for interval in step.optimizer),
    }
    for wait in step.waits:
        if (phase := step.phase_of(wait.start_s)) is not None:
            host[phase] = max(0.0, host[phase] - (wait.end_s - wait.start_s))
    if not timeline.works:
        return _Record(host, host, hooks, hooks)
    by_phase: dict[str, list[DeviceWork]] = {phase: [] for phase in _PHASES}
    for replayed in timeline.list_launched(*step.held):
        if (phase := step.phase_of(replayed.launched_s)) is not None:
            by_phase[phase].append(replayed.work)
    ready = [max(timeline.done_s(end_s) - begin_s, 0.0) for end_s in ends]
    return _Record(host, {phase: busy_s(by_phase[phase]) for phase in _PHASES}, hooks, ready)


def _phase(recorded: Sequence[_Record], phase: str) -> Phase:
    host, device = (np.array([getattr(r, clock)[phase] for r in recorded]).round(9) for clock in ("host_s", "device_s"))
    return Phase(host, device)


def _precision(traced: DissectedTrace, shapes: Workload | None) -> str:
    if any(parameter.dtype == "bfloat16" for parameter in traced.mapping.parameters):
        return "bf16"
    events = traced.file.events
    if shapes is not None and not events.works:
        return shapes.precision
    names = {work.name for work in events.works}
    halves = ("c10::Half", "f16f16", "h884", "h1688", "h16816")
    marks = {"amp": (*_BFLOAT16, *halves), "tf32": ("tf32",)}
    return next((p for p, words in marks.items() if any(w in name for name in names for w in words)), "fp32")


_BFLOAT16 = ("bf16", "BFloat16")
"""What names of kernels that take bfloat16 have."""


def _autocast_dtype(traced: DissectedTrace, shapes: Workload | None) -> str | None:
    """Return the type that a step under autocast casts to, as `Workload` has it, by its kernels but for NCCL's."""
    works = traced.file.events.works
    if not works:
        return None if shapes is None else shapes.autocast_dtype
    names = {work.name for work in works if not work.name.startswith("nccl")}
    return "bfloat16" if any(word in name for name in names for word in _BFLOAT16) else None


def _bound(workload: Workload) -> list[str]:
    host, device = (
        sum(statistics.median(getattr(getattr(workload, phase), clock).tolist()) for phase in _PHASES)
        for clock in ("host_s", "device_s")
    )
    if workload.device == "cpu":
        return []
    if device < _HOST_BOUND * host:
        what = f"{format_time(device)} of kernels in {format_time(host)} of host work a step"
        return [f"host-bound: {what}; a faster device would change little, and the profiler adds to the host's share"]
    return [f"device-bound: {format_time(device)} of kernels, {format_time(host)} of host work a step"]
